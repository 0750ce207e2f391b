"""The scores of runs, with what they rest on: intervals, extraction, sandbox, documents left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from dare_bench.analysis.names import run_names
from dare_bench.analysis.settings import answers_each, config_of
from dare_bench.formatting import bounds, percent
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph, ReportTable
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted, no_answer

_FEW_RUNS = 2
_FEW_TASKS = 4
_PASS_AT = re.compile(r"(.*_)?pass@(?!1$)\d+")
_SHORT = {"opencompass": "oc"}
"""Harnesses' names as they are written in a column."""


def elements(runs: Sequence[Run]) -> Iterator[Element]:
    """The report's section on scores: one or two runs in full, more of them as one table of headline scores.

    Tasks inside a group with a score of its own are left to the group.
    """
    if len(runs) > _FEW_RUNS:
        yield from _overview(runs)
        return
    for run, name in zip(runs, run_names(runs), strict=True):
        yield Heading(name)
        if run.block is None:
            yield Paragraph(f"No results yet (status {run.status}): run the same command again to finish it.")
            continue
        block = run.block
        yield Paragraph(
            f"{block.model.name} ({block.model.family}, {block.model.dtype}) under {block.harness.name}"
            f" {block.harness.version}, {run.status}, {run.created[:16].replace('T', ' ')}"
        )
        top = run.top_level()
        yield _table(["task"], [(run, score, [score.task]) for score in run.scores() if score.task in top])
        remarks = list(_remarks(run))
        if remarks:
            yield Bullets(remarks)


def _overview(runs: Sequence[Run]) -> Iterator[Element]:
    """One table for all runs. What is equal in all of them stands above it and not in a column."""
    yield Heading("Scores")
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    rows = [(run, score, _place(run, score.task, names[id(run)])) for run in runs for score in _leading(run)]
    columns = _columns([place for _, _, place in rows], [score.key for _, score, _ in rows])
    if rows and (above := [_whole(rows[0][0], name) for name in ("model", "harness") if name not in columns]):
        yield Paragraph(f"All: {' under '.join(above)}.")
    yield _table(columns, [(run, score, [place[name] for name in columns]) for run, score, place in rows])
    remarks = [f"{names[id(run)]}: {text}" for run in runs if run.block for text in (*_repeats(run), *_left_out(run))]
    remarks += [f"{names[id(run)]}: no results yet (status {run.status})" for run in runs if run.block is None]
    if remarks:
        yield Bullets(remarks)


def _leading(run: Run) -> Iterator[Score]:
    """The headline scores, and with several answers to a prompt each pass@k of more than one."""
    for task in run.top_level():
        score = run.headline(task)
        if score is not None:
            yield score
            if answers_each(run, task) > 1:
                yield from (own for own in run.scores() if own.task == task and _PASS_AT.fullmatch(own.metric))


def _place(run: Run, task: str, name: str) -> dict[str, str]:
    """What tells one row of the overview from another, by column."""
    assert run.block is not None
    return {
        "run": name,
        "model": run.model,
        "harness": _SHORT.get(run.block.harness.name, run.block.harness.name),
        "config": config_of(run, task) or task,
        "task": task,
    }


def _whole(run: Run, name: str) -> str:
    assert run.block is not None
    return run.model if name == "model" else run.block.harness.name


def _columns(places: Sequence[dict[str, str]], keys: Sequence[str]) -> list[str]:
    """The columns that are needed to tell all rows apart; the run's name only if nothing else does."""
    several = [name for name in ("model", "harness") if len({place[name] for place in places}) > 1]
    configs = ["config"] if any(place["config"] != place["task"] for place in places) else []
    columns = [*several, *configs, "task"]
    if len({(*(place[name] for name in columns), key) for place, key in zip(places, keys, strict=True)}) < len(keys):
        columns.insert(0, "run")
    return columns


def _table(names: Sequence[str], rows: Sequence[tuple[Run, Score, Sequence[str]]]) -> ReportTable:
    """One row for each score: ``names`` and what the rows have for these, then the score's own cells."""
    rates = any(score.extraction_rate is not None for _, score, _ in rows)
    columns = [*names, "metric", "%", "95 %", "n", "tier", *(["extracted"] if rates else [])]
    made = []
    for _, score, first in rows:
        metric = score.metric if score.filter == "none" else score.key
        n = f"{score.n} of {score.n_total}" if score.limited and score.n_total else str(score.n)
        value = percent(score.value) if 0 <= score.value <= 1 else f"({score.value:g})"
        own = [metric, value, bounds(score.lo, score.hi), n, score.tier or ""]
        made.append([*first, *own, *([percent(score.extraction_rate)] if rates else [])])
    return ReportTable(columns, made)


def _remarks(run: Run) -> Iterator[str]:
    assert run.block is not None
    yield from _repeats(run)
    yield from _extraction(run.block.extraction)
    yield from (event.what for event in run.block.events if "has changed since" in event.what)
    yield from _left_out(run)


def _repeats(run: Run) -> Iterator[str]:
    each = max((answers_each(run, task) for task in run.tasks), default=1)
    if each > 1:
        yield f"{each} answers to each prompt; intervals count documents"


def _left_out(run: Run) -> Iterator[str]:
    """What must be said beside any score of the run: documents left out of it, how generated code ran."""
    assert run.block is not None
    block = run.block
    if block.failures:
        first = block.failures[0]
        where = f"{first.task} {first.doc_id}: {first.error}"
        yield f"{no_answer(len(block.failures))} left out, the first: {where}"
    if block.execution is not None:
        level = "without a sandbox (--unsafe-no-sandbox)" if block.execution.unsafe else f"in {block.execution.level}"
        yield f"generated code ran {level}: {_listed(block.execution.statuses)}"


def _extraction(found: dict[str, dict[str, dict[str, int]]]) -> Iterator[str]:
    """What was not read out of answers: by task and filter, or in sum where there are many."""
    counts = {(task, name): statuses for task, filters in found.items() for name, statuses in filters.items()}
    short = {key: own for key, own in counts.items() if own.get("matched", 0) < sum(own.values())}
    if len(short) <= _FEW_TASKS:
        for (task, name), own in short.items():
            yield f"read out of answers, {task} ({name}): {_listed(own)}"
        return
    total: Counter[str] = Counter()
    for own in counts.values():
        total.update(own)
    worst, name = min(short, key=lambda key: short[key].get("matched", 0) / sum(short[key].values()))
    share = percent(short[worst, name].get("matched", 0) / sum(short[worst, name].values()))
    yield f"read out of answers, {counted(len(found), 'task')}: {_listed(total)}; least of {worst} ({name}): {share} %"


def _listed(counts: dict[str, int]) -> str:
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
