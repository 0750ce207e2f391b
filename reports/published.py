"""The report's section on published scores and what the runs of their recipes gave."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dare_bench.analysis.published import Bounded, PublishedComparison
from dare_bench.formatting import NONE, bounds, percent
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph, ReportTable

_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
EXPLAINED = (
    "In brackets: 95 % intervals, the difference's rather too wide: 'differs' can be relied"
    " on, 'within noise' means that so many documents cannot tell."
)


def elements(found: Sequence[PublishedComparison]) -> Iterator[Element]:
    """The report's section on published scores; nothing if no run was made by a recipe."""
    if not found:
        return
    yield Heading("Published and reproduced")
    yield ReportTable(
        ("recipe", "published %", "reproduced %", "difference", "verdict"),
        [_row(one) for one in found],
    )
    yield Paragraph(EXPLAINED)
    for one in found:
        remarks = list(_remarks(one))
        if remarks:
            yield Heading(f"{one.recipe}: {one.run_id}", 3)
            yield Bullets(remarks, list(_remarks(one, short=True)))


def _row(one: PublishedComparison) -> tuple[str, ...]:
    change = one.difference
    difference = f"{percent(change.value, '+')} ({bounds(change.lo, change.hi, sign='+')})" if change else NONE
    return one.recipe, _cell(one.published), _cell(one.reproduced), difference, one.verdict


def _cell(score: Bounded | None) -> str:
    if score is None:
        return NONE
    return f"{percent(score.value)} ({bounds(score.lo, score.hi)}) of {score.n or 'an unknown number'}"


def _remarks(one: PublishedComparison, short: bool = False) -> Iterator[str]:
    """``short``: of each doubt the first sentence, and where the rest is."""
    if one.reason:
        yield f"cannot tell: {one.reason}"
    yield f"compared: {one.task} {one.metric}"
    yield f"published as: {one.measures}" + (f" ({one.source})" if one.source else "")
    if one.deviations:
        yield "not the recipe's settings: " + "; ".join(one.deviations)
    if one.settings == "unrecorded":
        yield "its settings are recorded nowhere: the recipe has the closest that its authors ship or recommend"
    elif one.missing:
        yield "settings that no source records: " + ", ".join(one.missing)
    told = [_SENTENCE.split(doubt, maxsplit=1)[0] if short else doubt for doubt in one.doubts]
    yield from (f"doubt: {doubt}" for doubt in told)
    if told != list(one.doubts):
        yield f"more on these doubts: dare-bench ls recipes {one.recipe}"
    yield from one.notes
