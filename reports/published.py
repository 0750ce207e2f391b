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


def elements(comparisons: Sequence[PublishedComparison]) -> Iterator[Element]:
    """The report's section on published scores; nothing if no run was made by a recipe."""
    if not comparisons:
        return
    yield Heading("Published and reproduced")
    yield ReportTable(
        ("recipe", "published %", "reproduced %", "difference", "verdict"),
        [_row(comparison) for comparison in comparisons],
    )
    yield Paragraph(EXPLAINED)
    for comparison in comparisons:
        remarks = list(_remarks(comparison))
        if remarks:
            yield Heading(f"{comparison.recipe}: {comparison.run_id}", 3)
            yield Bullets(remarks, list(_remarks(comparison, short=True)))


def _row(comparison: PublishedComparison) -> tuple[str, ...]:
    change = comparison.difference
    difference = f"{percent(change.value, '+')} ({bounds(change.lo, change.hi, sign='+')})" if change else NONE
    return comparison.recipe, _cell(comparison.published), _cell(comparison.reproduced), difference, comparison.verdict


def _cell(score: Bounded | None) -> str:
    if score is None:
        return NONE
    return f"{percent(score.value)} ({bounds(score.lo, score.hi)}) of {score.n or 'an unknown number'}"


def _remarks(comparison: PublishedComparison, short: bool = False) -> Iterator[str]:
    """``short``: of each doubt the first sentence, and where the rest is."""
    if comparison.reason:
        yield f"cannot tell: {comparison.reason}"
    yield f"compared: {comparison.task} {comparison.metric}"
    yield f"published as: {comparison.measures}" + (f" ({comparison.source})" if comparison.source else "")
    if comparison.deviations:
        yield "not the recipe's settings: " + "; ".join(comparison.deviations)
    if comparison.settings == "unrecorded":
        yield "its settings are recorded nowhere: the recipe has the closest that its authors ship or recommend"
    elif comparison.missing:
        yield "settings that no source records: " + ", ".join(comparison.missing)
    doubts = [_SENTENCE.split(doubt, maxsplit=1)[0] if short else doubt for doubt in comparison.doubts]
    yield from (f"doubt: {doubt}" for doubt in doubts)
    if doubts != list(comparison.doubts):
        yield f"more on these doubts: dare-bench ls recipes {comparison.recipe}"
    yield from comparison.notes
