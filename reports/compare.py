"""A comparison of runs, told: scores and their difference, what weakens it, and the documents that changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from dare_bench.analysis.comparison import Compared, Comparison, Flip
from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.intervals import Interval
from dare_bench.analysis.names import letter
from dare_bench.analysis.settings import shown
from dare_bench.reports.agreement import Side, side
from dare_bench.reports.agreement_text import tail
from dare_bench.reports.text import Beside, Bullets, Heading, Line, Piece, Table, Verbatim, bounds, percent, points
from dare_bench.runs.text import counted

_IDS = 20
FORCED = "FORCED: what was asked differs, and differences of scores may come from that"
"""Stands above and beside everything that was compared although it does not compare."""


def pieces(made: Comparison, docs: int) -> Iterator[Piece]:
    """The whole comparison; of the documents that changed, ``docs`` each way are shown with prompt and answers."""
    letters = [letter(at) for at in range(len(made.runs))]
    yield Heading("Comparison")
    if made.forced:
        yield Line(f"{FORCED}.")
    yield Table(("", "run", "model", "status", "made"), [
        (name, run, opened.model, opened.status, opened.created[:16].replace("T", " "))
        for name, run, opened in zip(letters, made.names, made.runs, strict=True)
    ])  # fmt: skip
    several = len(made.runs) > 2
    yield Table(
        (*(["runs"] if several else []), "task", "metric", *_sides(made), "difference", "better", "worse", "p",
         "Holm", "verdict"),
        [_row(made, item, letters) for item in made.items],
    )  # fmt: skip
    yield Bullets(list(_method(made)))
    if made.left_out:
        yield Heading("Not compared", 3)
        yield Bullets(made.left_out)
    yield from _weak(made, letters)
    for item in made.items:
        yield from _documents(made, item, letters, docs)


def _sides(made: Comparison) -> tuple[str, str]:
    return ("first", "second") if len(made.runs) > 2 else ("A", "B")


def _row(made: Comparison, item: Compared, letters: Sequence[str]) -> list[str]:
    runs = [f"{letters[item.first]} to {letters[item.second]}"] if len(made.runs) > 2 else []
    change = item.difference
    metric = item.key.removesuffix(",none") + (" (lower is better)" if item.higher_is_better is False else "")
    return [
        *runs,
        item.task,
        metric,
        *(_score(item, value, around) for value, around in zip(item.values, item.scores, strict=True)),
        f"{number(item, change.value, '+')} ({_bounds(item, change.lo, change.hi, '+')})",
        str(len(item.better)),
        str(len(item.worse)),
        small(change.p),
        small(item.adjusted),
        ("FORCED: " if item.breaks else "") + item.verdict,
    ]


def _score(item: Compared, value: float, around: Interval) -> str:
    return f"{number(item, value)} ({_bounds(item, around.lo, around.hi)})"


def number(item: Compared, value: float, sign: str = "") -> str:
    """A score or difference: percent where the scores are shares, else as it is."""
    return percent(value, sign) if item.is_share else f"{value:{sign}.4g}"


def _bounds(item: Compared, lo: float | None, hi: float | None, sign: str = "") -> str:
    if item.is_share or lo is None or hi is None:
        return bounds(lo, hi, sign)
    return f"{lo:{sign}.4g} to {hi:{sign}.4g}"


def small(p: float | None) -> str:
    """A p-value: three digits, or its order where it is small."""
    return "—" if p is None else f"{p:.3f}" if p >= 0.001 else f"{p:.0e}"


def _method(made: Comparison) -> Iterator[str]:
    """How to read the table."""
    level = f"{100 * made.level:g} %"
    unit = "percent, " if any(item.is_share for item in made.items) else ""
    less = "B less A" if len(made.runs) == 2 else "the second run less the first"
    yield f"scores and differences: {unit}in brackets {level} intervals; difference: {less}, paired by document"
    yield f"tests: {_listed(item.difference.test for item in made.items)}, two-sided"
    yield f"intervals of differences: {_listed(item.difference.method for item in made.items)}"
    tests = sum(item.difference.p is not None for item in made.items)
    yield f"Holm: p adjusted over all comparisons made here ({tests}); the verdict goes by it, at {level}"
    for item in made.items:
        if item.verdict in ("no difference shown", "cannot tell"):
            yield f"{_title(made, item)}: {_can_show(item)}"


def _can_show(item: Compared) -> str:
    """The drop that so many documents would have shown."""
    documents = counted(item.difference.n, "document")
    if not math.isfinite(item.smallest_drop):
        return f"{documents} can show no drop: too few"
    drop = points(item.smallest_drop) if item.is_share else f"{item.smallest_drop:.4g}"
    return f"what {documents} can show: a drop of {drop} or more (found in 4 of 5 such tests)"


def _listed(names: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _title(made: Comparison, item: Compared) -> str:
    runs = f", {letter(item.first)} to {letter(item.second)}" if len(made.runs) > 2 else ""
    return f"{item.task}{runs}"


def _weak(made: Comparison, letters: Sequence[str]) -> Iterator[Piece]:
    """What weakens the comparisons, each once for the pairs of runs it holds for."""
    broken = [f"{_title(made, item)}: {text}" for item in made.items for text in item.breaks]
    if broken:
        yield Heading(FORCED, 3)
        yield Bullets(broken)
    found = told(made)
    if found:
        yield Heading("What weakens this", 3)
        yield Bullets(found)
    settings: dict[tuple[str, str, str], dict[tuple[str, str], list[str]]] = {}
    for item in made.items:
        for name, (one, two) in item.settings.items():
            values = settings.setdefault((name, letters[item.first], letters[item.second]), {})
            values.setdefault((shown(one), shown(two)), []).append(item.task)
    if settings:
        yield Heading("Settings that differ", 3)
        pairs = len(made.runs) > 2
        yield Table((*(["runs"] if pairs else []), "setting", *_sides(made)), [
            (*([f"{a} to {b}"] if pairs else []), name if len(values) == 1 else f"{name} ({', '.join(tasks)})", *two)
            for (name, a, b), values in settings.items() for two, tasks in values.items()
        ])  # fmt: skip


def told(made: Comparison) -> list[str]:
    """Every warning once, with the tasks and runs that it is about where it is not about all."""
    found: dict[str, list[Compared]] = {}
    for item in made.items:
        for text in item.warnings:
            found.setdefault(text, []).append(item)
    return [
        text if len(items) == len(made.items) else f"{'; '.join(_title(made, item) for item in items)}: {text}"
        for text, items in found.items()
    ]


def _documents(made: Comparison, item: Compared, letters: Sequence[str], docs: int) -> Iterator[Piece]:
    names = letters[item.first], letters[item.second]
    if not (item.better or item.worse):
        return
    yield Heading(f"{_title(made, item)}: documents that changed")
    lists = [(f"{len(flips)} {word} in {names[1]}", flips) for word, flips in _ways(item) if flips]
    yield Bullets(
        [f"{label}: {_ids(item, flips, len(flips))}" for label, flips in lists],
        [f"{label}: {_ids(item, flips, _IDS)}" for label, flips in lists],
    )
    for word, flips in _ways(item):
        for flip in largest(flips)[:docs]:
            yield from _document(made, item, flip, word, names)


def _ways(item: Compared) -> list[tuple[str, tuple[Flip, ...]]]:
    return [("worse", item.worse), ("better", item.better)]


def largest(flips: Sequence[Flip]) -> list[Flip]:
    """The flips, those that changed most first."""
    return sorted(flips, key=lambda flip: -abs(flip.second - flip.first))


def _ids(item: Compared, flips: Sequence[Flip], most: int) -> str:
    more = f" and {len(flips) - most} more" if len(flips) > most else ""
    return ", ".join(_id(item, flip) for flip in flips[:most]) + more


def _id(item: Compared, flip: Flip) -> str:
    return flip.doc_id if flip.task == item.task else f"{flip.task}/{flip.doc_id}"


def _document(made: Comparison, item: Compared, flip: Flip, word: str, names: tuple[str, str]) -> Iterator[Piece]:
    one, two = made.documents(item, flip)
    score = made.score(item)
    a, b = side(one, document_view(one), score), side(two, document_view(two), score)
    yield Heading(f"Document {_id(item, flip)}, {word}: {flip.first:g} in {names[0]}, {flip.second:g} in {names[1]}", 3)
    if item.breaks:
        yield Line(f"{FORCED}.")
    same = [(label, x) for label, x, y in _asked(a, b) if x == y]
    other = [(label, x, y) for label, x, y in _asked(a, b) if x != y]
    yield from (Verbatim(label, text) for label, text in same)
    read = [("read out", a.read, b.read)] if (a.read, b.read) != (a.answer, b.answer) else []
    yield Beside(names, [*other, ("answer", a.answer, b.answer), *read])


def _asked(a: Side, b: Side) -> list[tuple[str, str, str]]:
    return [("prompt, its end", tail(a.prompt), tail(b.prompt)), ("target", a.target, b.target)]


def record(made: Comparison, docs: int) -> dict[str, Any]:
    """The same as plain JSON: all ids of documents that changed, and ``docs`` each way with prompt and answers."""
    return {
        "forced": made.forced,
        "level": made.level,
        "runs": [
            {"name": letter(at), "run_id": run.run_id, "path": str(run.path), "model": run.model, "status": run.status}
            for at, run in enumerate(made.runs)
        ],
        "comparisons": [_record(made, item, docs) for item in made.items],
        "not_compared": made.left_out,
    }


def _record(made: Comparison, item: Compared, docs: int) -> dict[str, Any]:
    known = math.isfinite(item.smallest_drop)
    return {
        "first": letter(item.first),
        "second": letter(item.second),
        "task": item.task,
        "score": item.key,
        "higher_is_better": item.higher_is_better,
        "documents": item.difference.n,
        "only_first": item.only_first,
        "only_second": item.only_second,
        "scores": [
            {"value": value, **asdict(around)} for value, around in zip(item.values, item.scores, strict=True)
        ],
        "difference": asdict(item.difference),
        "holm_p": item.adjusted,
        "verdict": item.verdict,
        "forced": bool(item.breaks),
        "not_comparable": list(item.breaks),
        "warnings": list(item.warnings),
        "settings": {name: {"first": a, "second": b} for name, (a, b) in item.settings.items()},
        "smallest_drop": item.smallest_drop if known else None,
        **{word: [asdict(flip) for flip in flips] for word, flips in _ways(item)},
        "shown": [_shown(made, item, flip, word) for word, flips in _ways(item) for flip in largest(flips)[:docs]],
    }  # fmt: skip


def _shown(made: Comparison, item: Compared, flip: Flip, word: str) -> dict[str, Any]:
    sides = [asdict(side(doc, document_view(doc), made.score(item))) for doc in made.documents(item, flip)]
    return {"task": flip.task, "doc_id": flip.doc_id, "changed": word, "first": sides[0], "second": sides[1]}
