"""The scores of runs, with what they rest on: intervals, extraction, sandbox, documents left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dare_bench.reports.text import Bullets, Heading, Line, Piece, Table, bounds, percent
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score

_FEW_RUNS = 2
_FEW_TASKS = 4


def pieces(runs: Sequence[Run]) -> Iterator[Piece]:
    """The report's section on scores: one or two runs in full, more of them as one table of headline scores.

    Tasks inside a group with a score of its own are left to the group.
    """
    if len(runs) > _FEW_RUNS:
        yield from _overview(runs)
        return
    for run in runs:
        yield Heading(run.run_id)
        if run.block is None:
            yield Line(f"No results yet (status {run.status}): run the same command again to finish it.")
            continue
        block = run.block
        yield Line(
            f"{block.model.name} ({block.model.family}, {block.model.dtype}) under {block.harness.name}"
            f" {block.harness.version}, {run.status}, {run.created[:16].replace('T', ' ')}"
        )
        top = run.top_level()
        yield _table((), [(run, score, ()) for score in run.scores() if score.task in top])
        remarks = list(_remarks(run))
        if remarks:
            yield Bullets(remarks)


def _overview(runs: Sequence[Run]) -> Iterator[Piece]:
    yield Heading("Scores")
    several = len({run.model for run in runs}) > 1
    rows = []
    for run in runs:
        name = run.block.harness.name if run.block else ""
        for task in run.top_level():
            score = run.headline(task)
            if score is not None:
                rows.append((run, score, (run.model, name) if several else (name,)))
    yield _table(("model", "harness") if several else ("harness",), rows)
    remarks = [f"{run.run_id}: {text}" for run in runs if run.block for text in _left_out(run)]
    remarks += [f"{run.run_id}: no results yet (status {run.status})" for run in runs if run.block is None]
    if remarks:
        yield Bullets(remarks)


def _table(names: Sequence[str], rows: Sequence[tuple[Run, Score, Sequence[str]]]) -> Table:
    rates = [score.extraction_rate for _, score, _ in rows]
    known = any(rate is not None for rate in rates)
    columns = (*names, "task", "metric", "filter", "%", "95 %", "n", "tier", *(("extracted %",) if known else ()))
    return Table(
        columns,
        [
            (*first, *_cells(score), *((percent(rate),) if known else ()))
            for (_, score, first), rate in zip(rows, rates, strict=True)
        ],
    )


def _cells(score: Score) -> tuple[str, ...]:
    n = f"{score.n} of {score.n_total}" if score.limited and score.n_total else str(score.n)
    value = percent(score.value) if 0 <= score.value <= 1 else f"({score.value:g})"
    return score.task, score.metric, score.filter, value, bounds(score.lo, score.hi), n, score.tier or ""


def _remarks(run: Run) -> Iterator[str]:
    assert run.block is not None
    if run.block.repeats > 1:
        yield f"{run.block.repeats} answers to each prompt; intervals count documents"
    yield from _extraction(run.block.extraction)
    yield from (event.what for event in run.block.events if "has changed since" in event.what)
    yield from _left_out(run)


def _left_out(run: Run) -> Iterator[str]:
    """What must be said beside any score of the run: documents left out of it, how generated code ran."""
    assert run.block is not None
    block = run.block
    if block.failures:
        first = block.failures[0]
        where = f"{first.task} {first.doc_id}: {first.error}"
        yield f"{len(block.failures)} documents have no answer and are left out, the first: {where}"
    if block.execution is not None:
        level = "without a sandbox (--unsafe-no-sandbox)" if block.execution.unsafe else f"in {block.execution.level}"
        yield f"generated code ran {level}: {_counted(block.execution.statuses)}"


def _extraction(found: dict[str, dict[str, dict[str, int]]]) -> Iterator[str]:
    """What was not read out of answers: by task and filter, or in sum where there are many."""
    counts = {(task, name): statuses for task, filters in found.items() for name, statuses in filters.items()}
    short = {key: own for key, own in counts.items() if own.get("matched", 0) < sum(own.values())}
    if len(short) <= _FEW_TASKS:
        for (task, name), own in short.items():
            yield f"read out of answers, {task} ({name}): {_counted(own)}"
        return
    total: Counter[str] = Counter()
    for own in counts.values():
        total.update(own)
    worst, name = min(short, key=lambda key: short[key].get("matched", 0) / sum(short[key].values()))
    share = percent(short[worst, name].get("matched", 0) / sum(short[worst, name].values()))
    yield f"read out of answers, {len(found)} tasks: {_counted(total)}; least of {worst} ({name}): {share} %"


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items() if count) or "none"


def record(run: Run) -> dict[str, Any]:
    """The same as plain JSON, all tasks in it."""
    from dataclasses import asdict

    made: dict[str, Any] = {
        "run_id": run.run_id,
        "path": str(run.path),
        "model": run.model,
        "status": run.status,
        "created": run.created,
        "scores": [asdict(score) for score in run.scores()],
    }
    if run.block is not None:
        made["harness"] = run.block.harness.model_dump()
        made["failures"] = len(run.block.failures)
        made["execution"] = run.block.execution.model_dump() if run.block.execution else None
    return made
