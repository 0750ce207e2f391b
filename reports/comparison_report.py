"""The report of a comparison: scores and differences, warnings, and the documents that changed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dare_bench.analysis.agreement import DocumentSide, document_side
from dare_bench.analysis.comparison import ChangedDocument, RunComparison, ScoreComparison
from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.names import letter
from dare_bench.analysis.settings import setting_text
from dare_bench.formatting import about_points, bounds, number, p_value, short_difference, short_number
from dare_bench.reports.agreement_report import tail
from dare_bench.reports.elements import (
    Bullets,
    Element,
    Heading,
    Paragraph,
    ReportTable,
    SideBySide,
    Verbatim,
    narrowing,
)
from dare_bench.runs.text import counted, listed

_IDS = 20
_HOLM = "Holm p"
FORCED = "FORCED: tasks or prompts differ, which may explain the differences in score"
"""Marks everything that was compared although it is not comparable."""


def elements(comparison: RunComparison, docs: int) -> Iterator[Element]:
    """The comparison, with prompt and answers of at most ``docs`` documents of each kind of change."""
    yield Heading("Comparison")
    if comparison.forced:
        yield Paragraph(f"{FORCED}.")
    yield narrowing(("", "run", "model", "status", "created"), [
        (letter(at), name, run.model, run.status_text, run.created[:16].replace("T", " "))
        for at, (name, run) in enumerate(zip(comparison.names, comparison.runs, strict=True))
    ], ("created", "model", "status"))  # fmt: skip
    scores, p = " -> ".join(_sides(comparison)), _HOLM if _tests(comparison) > 1 else "p"
    brief = narrowing(
        (*_runs(comparison, "runs"), "task", "n", scores, "difference", "changed", p, "verdict"),
        [_brief_row(comparison, item) for item in comparison.items], ("n", "changed", scores, p),
    )  # fmt: skip
    yield ReportTable(
        (*_runs(comparison, "runs"), "task", "metric", "n", *_sides(comparison), "difference", "better", "worse", "p",
         _HOLM, "verdict"),
        [_row(comparison, item) for item in comparison.items], (brief, *brief.narrower),
    )  # fmt: skip
    yield Bullets(list(_method(comparison)))
    if comparison.left_out:
        yield Heading("Not compared", 3)
        yield Bullets(comparison.left_out)
    yield from _caveats(comparison)
    for item in comparison.items:
        yield from _documents(comparison, item, docs)


def _brief_row(comparison: RunComparison, item: ScoreComparison) -> list[str]:
    """The row of a table for a narrow terminal: one decimal of a percentage, and the p that the verdict is based on."""
    difference, share = item.difference, item.is_share
    first, second = (short_number(value, share) for value in item.values)
    ends = f" [{_signed(difference.lo, share)}, {_signed(difference.hi, share)}]" if difference.lo is not None else ""
    return [
        *_runs(comparison, f"{letter(item.first)} to {letter(item.second)}"),
        item.task,
        str(difference.n),
        f"{first} -> {second}",
        _signed(difference.value, share) + ends,
        f"+{len(item.better)} -{len(item.worse)}",
        p_value(item.adjusted),
        ("FORCED: " if item.breaks else "") + item.verdict,
    ]


def _signed(value: float | None, share: bool) -> str:
    return short_difference(value, share).replace("−", "-")


def _runs(comparison: RunComparison, cell: str) -> list[str]:
    """The cell with a row's runs, where there are more than two."""
    return [cell] if len(comparison.runs) > 2 else []


def _sides(comparison: RunComparison) -> tuple[str, str]:
    return ("first", "second") if len(comparison.runs) > 2 else ("A", "B")


def _row(comparison: RunComparison, item: ScoreComparison) -> list[str]:
    difference, share = item.difference, item.is_share
    metric = item.key.removesuffix(",none") + (" (lower is better)" if item.higher_is_better is False else "")
    scores = zip(item.values, item.scores, strict=True)
    return [
        *_runs(comparison, f"{letter(item.first)} to {letter(item.second)}"),
        item.task,
        metric,
        str(difference.n),
        *(f"{number(value, share)} ({bounds(interval.lo, interval.hi, share)})" for value, interval in scores),
        f"{number(difference.value, share, '+')} ({bounds(difference.lo, difference.hi, share, '+')})",
        str(len(item.better)),
        str(len(item.worse)),
        p_value(difference.p),
        p_value(item.adjusted),
        ("FORCED: " if item.breaks else "") + item.verdict,
    ]


def _tests(comparison: RunComparison) -> int:
    return sum(item.difference.p is not None for item in comparison.items)


def _method(comparison: RunComparison) -> Iterator[str]:
    level, items = f"{100 * comparison.level:g}%", comparison.items
    unit = "percent, " if any(item.is_share for item in items) else ""
    minus = "B minus A" if len(comparison.runs) == 2 else "the second run minus the first"
    yield f"scores and differences: {unit}in brackets {level} intervals; difference: {minus}, paired by document"
    yield f"tests: {_unique(item.difference.test for item in items)}, two-sided"
    yield (
        f"intervals of differences: {_unique(item.difference.method for item in items)}; 0 lies inside unless the test"
        f" rejects it at {level}"
    )
    if (tests := _tests(comparison)) > 1:
        yield (
            f"{_HOLM}: p adjusted over all {tests} comparisons, which decides the verdict at {level}; intervals, and a"
            " column p, are those of each comparison alone"
        )
    else:
        yield f"the verdict is based on p, at {level}"
    yield from comparison.once(
        (item, detectable_drop(item.difference.n, item.smallest_drop, item.is_share))
        for item in items
        if item.verdict in ("no difference shown", "cannot tell")
    )


def detectable_drop(n: int, drop: float, share: bool) -> str:
    """The detectable drop in words; infinite: none."""
    if not math.isfinite(drop):
        return f"no drop is detectable with {counted(n, 'document')}"
    size = about_points(drop, share)
    return f"detectable with {counted(n, 'document')}: a drop of {size} or more (with a power of 80%)"


def _unique(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _caveats(comparison: RunComparison) -> Iterator[Element]:
    """What weakens the comparisons, each once with the pairs of runs that it concerns."""
    broken = [f"{comparison.title(item)}: {text}" for item in comparison.items for text in item.breaks]
    if broken:
        yield Heading(FORCED, 3)
        yield Bullets(broken)
    if warnings := [*comparison.stopped(), *comparison.warning_lines()]:
        yield Heading("Warnings", 3)
        yield Bullets(warnings)
    settings: dict[tuple[str, str], dict[tuple[str, str], list[str]]] = {}
    for item in comparison.items:
        for name, values in item.settings.items():
            runs = f"{letter(item.first)} to {letter(item.second)}"
            tasks = settings.setdefault((name, runs), {}).setdefault(
                (setting_text(values[0]), setting_text(values[1])), []
            )
            tasks.append(item.task)
    if settings:
        yield Heading("Settings that differ", 3)
        yield ReportTable((*_runs(comparison, "runs"), "setting", *_sides(comparison)), [
            (*_runs(comparison, runs), name if len(values) == 1 else f"{name} ({', '.join(tasks)})", *pair)
            for (name, runs), values in settings.items() for pair, tasks in values.items()
        ])  # fmt: skip


def _documents(comparison: RunComparison, item: ScoreComparison, docs: int) -> Iterator[Element]:
    if not (item.better or item.worse):
        return
    yield Heading(f"{comparison.title(item)}: documents that changed")
    n, second = item.difference.n, letter(item.second)
    lists = [(f"{len(changed)} of {n} {kind} in {second}", changed) for kind, changed in _kinds(item) if changed]
    full, short = (
        [f"{label}: {listed([_id(item, document) for document in changed], most)}" for label, changed in lists]
        for most in (n, _IDS)
    )
    yield Bullets(full, short)
    for kind, changed in _kinds(item):
        for document in largest(changed)[:docs]:
            yield from _document(comparison, item, document, kind)


def _kinds(item: ScoreComparison) -> list[tuple[str, tuple[ChangedDocument, ...]]]:
    return [("worse", item.worse), ("better", item.better)]


def largest(changed: Sequence[ChangedDocument]) -> list[ChangedDocument]:
    """The documents, sorted by the size of their change."""
    return sorted(changed, key=lambda document: -abs(document.second - document.first))


def _id(item: ScoreComparison, document: ChangedDocument) -> str:
    return document.doc_id if document.task == item.task else f"{document.task}/{document.doc_id}"


def _document(
    comparison: RunComparison, item: ScoreComparison, document: ChangedDocument, kind: str
) -> Iterator[Element]:
    names = letter(item.first), letter(item.second)
    a, b = _document_sides(comparison, item, document)
    values = f"{document.first:g} in {names[0]}, {document.second:g} in {names[1]}"
    yield Heading(f"Document {_id(item, document)}, {kind}: {values}", 3)
    if item.breaks:
        yield Paragraph(f"{FORCED}.")
    inputs = [("end of the prompt", tail(a.prompt), tail(b.prompt)), ("target", a.target, b.target)]
    yield from (Verbatim(label, x) for label, x, y in inputs if x == y)
    extracted = [("extracted", a.read, b.read)] if (a.read, b.read) != (a.answer, b.answer) else []
    differing = [(label, x, y) for label, x, y in inputs if x != y]
    yield SideBySide(names, [*differing, ("answer", a.answer, b.answer), *extracted])


def _document_sides(
    comparison: RunComparison, item: ScoreComparison, document: ChangedDocument
) -> tuple[DocumentSide, DocumentSide]:
    score = comparison.score(item)
    first, second = comparison.documents(item, document)
    return document_side(first, document_view(first), score), document_side(second, document_view(second), score)


def record(comparison: RunComparison, docs: int) -> dict[str, Any]:
    """The comparison as JSON values: ids of all changed documents, ``docs`` of each kind with prompt and answers."""
    return {
        "forced": comparison.forced,
        "level": comparison.level,
        "runs": [
            {
                "name": letter(at),
                "run_id": run.run_id,
                "path": str(run.path),
                "model": run.model,
                "status": run.status,
                "limited": run.is_limited,
            }
            for at, run in enumerate(comparison.runs)
        ],
        "comparisons": [_record(comparison, item, docs) for item in comparison.items],
        "not_compared": comparison.left_out,
    }


def _record(comparison: RunComparison, item: ScoreComparison, docs: int) -> dict[str, Any]:
    scores = zip(item.values, item.scores, strict=True)
    return {
        "first": letter(item.first),
        "second": letter(item.second),
        "task": item.task,
        "score": item.key,
        "higher_is_better": item.higher_is_better,
        "documents": item.difference.n,
        "only_first": item.only_first,
        "only_second": item.only_second,
        "scores": [{"value": value, **asdict(interval)} for value, interval in scores],
        "difference": asdict(item.difference),
        "holm_p": item.adjusted,
        "verdict": item.verdict,
        "forced": bool(item.breaks),
        "not_comparable": list(item.breaks),
        "warnings": list(item.warnings),
        "settings": {name: {"first": a, "second": b} for name, (a, b) in item.settings.items()},
        "smallest_drop": item.smallest_drop if math.isfinite(item.smallest_drop) else None,
        **{kind: [asdict(document) for document in changed] for kind, changed in _kinds(item)},
        "shown": [
            _changed_record(comparison, item, document, kind)
            for kind, changed in _kinds(item)
            for document in largest(changed)[:docs]
        ],
    }


def _changed_record(
    comparison: RunComparison, item: ScoreComparison, document: ChangedDocument, kind: str
) -> dict[str, Any]:
    first, second = map(asdict, _document_sides(comparison, item, document))
    return {"task": document.task, "doc_id": document.doc_id, "changed": kind, "first": first, "second": second}
