"""The report's sections on scores (with intervals, extraction rates, sandbox and failed documents), on published scores
and their reproductions, and on tasks of several runs: do they have the same prompts?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from dare_bench.analysis.intervals import separable
from dare_bench.analysis.names import run_names, unknown_text
from dare_bench.analysis.published import Bounded, PublishedComparison
from dare_bench.analysis.settings import answers_each, config_of, distinguishing
from dare_bench.analysis.task_changes import SharedTask, TaskChange
from dare_bench.formatting import NONE, bounds, percent, short_number
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph, ReportTable
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN, Block
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted, listed, no_answer, shorten, stopping, undecided

_FEW_RUNS = 2
_FEW_TASKS = 4
_PASS_AT = re.compile(r"(.*_)?pass@(?!1$)\d+")
_SHORT = {"opencompass": "oc"}
"""Short names of harnesses for a column."""


def elements(runs: Sequence[Run]) -> Iterator[Element]:
    """The report's section on scores: all scores of one or two runs, the headline scores of more runs in one table.

    Tasks of a group that has a score are left out.
    """
    if len(runs) > _FEW_RUNS:
        yield from _overview(runs)
        return
    for run, name, settings in zip(runs, run_names(runs), distinguishing(runs), strict=True):
        yield Heading(name)
        if run.block is None:
            yield Paragraph(f"{_no_results(run).capitalize()}: run the same command again to finish it.")
            continue
        block = run.block
        facts = [
            f"{name} {UNKNOWN}" if (value := getattr(block.model, name)) == UNKNOWN else value
            for name in ("family", "dtype")
        ]
        yield Paragraph(
            f"{block.model.name} ({', '.join(facts)}) under {block.harness.name}"
            f" {_version(block)}, {run.status_text}, {run.created[:16].replace('T', ' ')}"
            f"{settings and f', {settings}'}"
        )
        top = run.top_level()
        yield _table(["task"], [(run, score, [score.task]) for score in run.scores() if score.task in top])
        extraction = _extraction(block.extraction)
        changes = (event.what for event in block.events if "has changed since" in event.what)
        if notes := [*_repeats(run), *_draws(run), *extraction, *changes, *_limitations(run)]:
            yield Bullets(notes)


def _version(block: Block) -> str:
    return f"of version {UNKNOWN}" if block.harness.version == UNKNOWN else block.harness.version


def _overview(runs: Sequence[Run]) -> Iterator[Element]:
    """One table for all runs. Values that are equal in all runs are above it instead of in a column."""
    yield Heading("Scores")
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    settings = dict(zip(map(id, runs), distinguishing(runs), strict=True))
    rows = [
        (run, score, _labels(run, score.task, names[id(run)]) | {"settings": settings[id(run)]})
        for run in runs for score in _headlines(run)
    ]  # fmt: skip
    columns = _columns([labels for _, _, labels in rows], [score.key for _, score, _ in rows])
    if rows:
        run, first = rows[0][0], rows[0][2]
        common = {"model": first["model"], "harness": run.require_block().harness.name}
        if texts := [text for name, text in common.items() if name not in columns]:
            yield Paragraph(f"All: {' under '.join(texts)}.")
    whole = _table(columns, [(run, score, [labels[name] for name in columns]) for run, score, labels in rows])
    yield replace(whole, narrower=[_brief(rows, True), _brief(rows, False)])
    notes: dict[str, list[str]] = {}
    for run in runs:
        said = (*_repeats(run), *_draws(run), *_limitations(run)) if run.block else (_no_results(run),)
        for text in said:
            notes.setdefault(text, []).append(names[id(run)])
    if notes:
        yield Bullets(*([f"{listed(of, most)}: {text}" for text, of in notes.items()] for most in (len(runs), 2)))


def _brief(rows: Sequence[tuple[Run, Score, Mapping[str, str]]], with_n: bool) -> ReportTable:
    """The table for a narrow terminal: one column says which run it is, by its model where no other run has it, else by
    its id; long names lack their middle."""
    ids_of: dict[str, set[str]] = {}
    for _, _, labels in rows:
        ids_of.setdefault(labels["model"], set()).add(labels["run"])
    keys = {labels["task"]: score.key for _, score, labels in rows}
    several = any(keys[labels["task"]] != score.key for _, score, labels in rows)
    lines = []
    for _, score, labels in rows:
        name = labels["model"] if len(ids_of[labels["model"]]) == 1 else labels["run"]
        task = f"{labels['task']} {score.key.removesuffix(',none')}" if several else labels["task"]
        value, *ends = (short_number(number, score.is_share) for number in (score.value, score.lo, score.hi))
        lines.append(
            [shorten(name, 27), shorten(task, 22), f"{value} [{', '.join(ends)}]", *([score.n_text] if with_n else [])]
        )
    return ReportTable(["run", "task", "% [95%]", *(["n"] if with_n else [])], lines)


def _no_results(run: Run) -> str:
    return f"no results yet (status {run.status})"


def _headlines(run: Run) -> Iterator[Score]:
    """The headline scores, and with several answers to each prompt also pass@k with k > 1."""
    for task in run.top_level():
        score = run.headline(task)
        if score is not None:
            yield score
            if answers_each(run, task) > 1:
                yield from (s for s in run.scores() if s.task == task and _PASS_AT.fullmatch(s.metric))


def _labels(run: Run, task: str, name: str) -> dict[str, str]:
    harness = run.require_block().harness.name
    return {
        "run": name,
        "model": run.model,
        "harness": _SHORT.get(harness, harness),
        "config": config_of(run, task) or task,
        "task": task,
    }


def _columns(rows: Sequence[dict[str, str]], keys: Sequence[str]) -> list[str]:
    """The columns that distinguish all rows; the run's name only if the others do not."""
    columns = [name for name in ("model", "harness") if len({labels[name] for labels in rows}) > 1]
    columns += ["config"] if any(labels["config"] != labels["task"] for labels in rows) else []
    columns.append("task")
    if len({(*(labels[name] for name in columns), key) for labels, key in zip(rows, keys, strict=True)}) < len(keys):
        columns.insert(0, "run")
    if any(labels["settings"] for labels in rows):
        columns.insert(columns.index("task"), "settings")
    return columns


def _table(names: Sequence[str], rows: Sequence[tuple[Run, Score, Sequence[str]]]) -> ReportTable:
    """One row for each score: the labels for the columns ``names``, then the cells of the score."""
    rates = any(score.extraction_rate is not None for _, score, _ in rows)
    columns = [*names, "metric", "%", "95%", "n", "tier", *(["extracted"] if rates else [])]
    lines = []
    for _, score, labels in rows:
        metric = score.metric if score.filter == "none" else score.key
        n = score.n_text
        value = percent(score.value) if 0 <= score.value <= 1 else f"({score.value:g})"
        cells = [metric, value, bounds(score.lo, score.hi), n, score.exactness]
        lines.append([*labels, *cells, *([percent(score.extraction_rate)] if rates else [])])
    return ReportTable(columns, lines)


def _repeats(run: Run) -> Iterator[str]:
    count = max((answers_each(run, task) for task in run.tasks), default=1)
    if count > 1:
        yield f"{count} answers to each prompt; intervals count documents"


def _draws(run: Run) -> Iterator[str]:
    """What the random draws behind the headline scores can separate: the noisiest ones."""
    block = run.require_block()
    yield from undecided(block)
    intervals = block.ci
    scores = [score for task in run.tasks if (score := run.headline(task)) is not None]
    drawn = [(s, ci.draws) for s in scores if (ci := intervals.get(s.task, {}).get(s.key)) and ci.draws is not None]
    for score, noise in sorted(drawn, key=lambda each: -each[1].sd)[:_FEW_TASKS]:
        yield (
            f"{score.task} {score.metric}: other random draws may change {noise.undecided} of"
            f" {counted(score.n, 'document')}, and the score by {percent(noise.sd)} points (sd over seeds). Their noise"
            f" alone makes two runs differ by up to {percent(separable(noise.sd))} points"
        )


def _limitations(run: Run) -> Iterator[str]:
    """Notes that belong to every score of the run: why it stopped, failed documents, execution of generated code."""
    block = run.require_block()
    yield from stopping(block)
    if run.is_external:
        yield unknown_text(run)
        yield from (*block.notes, *(f"left out: {reason}" for reason in run.left_out))
    if block.failures:
        first = block.failures[0]
        where = f"{first.task} {first.doc_id}: {first.error}"
        yield f"{no_answer(len(block.failures))} left out, the first: {where}"
    if block.execution is not None:
        level = "without a sandbox (--unsafe-no-sandbox)" if block.execution.unsafe else f"in {block.execution.level}"
        yield f"generated code ran {level}: {_listed(block.execution.statuses)}"


def _extraction(extraction: dict[str, dict[str, dict[str, int]]]) -> Iterator[str]:
    """Answers that could not be extracted: by task and filter, or in sum where there are many."""
    counts = {(task, name): statuses for task, filters in extraction.items() for name, statuses in filters.items()}
    rates = {key: own.get("matched", 0) / sum(own.values()) for key, own in counts.items() if any(own.values())}
    partial = {key: rate for key, rate in rates.items() if rate < 1}
    if len(partial) <= _FEW_TASKS:
        for task, name in partial:
            yield f"extracted from answers, {task} ({name}): {_listed(counts[task, name])}"
        return
    total: Counter[str] = Counter()
    for statuses in counts.values():
        total.update(statuses)
    task, name = min(partial, key=lambda key: partial[key])
    lowest = f"lowest in {task} ({name}): {percent(partial[task, name])}%"
    yield f"extracted from answers, {counted(len(extraction), 'task')}: {_listed(total)}; {lowest}"


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items() if count) or "none"


def record(run: Run) -> dict[str, Any]:
    """The scores of all tasks as JSON values."""
    values: dict[str, Any] = {
        "run_id": run.run_id,
        "path": str(run.path),
        "model": run.model,
        "status": run.status,
        "created": run.created,
        "scores": [asdict(score) for score in run.scores()],
    }
    if run.block is not None:
        values["harness"] = run.block.harness.model_dump()
        values["failures"] = len(run.block.failures)
        values["not_recorded"] = list(run.unknown)
        values["execution"] = run.block.execution.model_dump() if run.block.execution else None
    return values


_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
EXPLAINED = (
    "In brackets: 95% intervals, conservative for differences: 'differs' is reliable,"
    " 'within noise' means that the test set is too small to decide."
)


def published_elements(comparisons: Sequence[PublishedComparison]) -> Iterator[Element]:
    """The report's section on published scores; nothing if no run followed a recipe."""
    if not comparisons:
        return
    yield Heading("Published and reproduced")
    yield ReportTable(
        ("recipe", "published %", "reproduced %", "difference", "verdict"),
        [_row(comparison) for comparison in comparisons],
    )
    yield Paragraph(EXPLAINED)
    for comparison in comparisons:
        yield Heading(f"{comparison.recipe}: {comparison.run_id}", 3)
        yield Bullets(list(_notes(comparison)), list(_notes(comparison, short=True)))


def _row(comparison: PublishedComparison) -> tuple[str, ...]:
    difference = comparison.difference
    text = (
        f"{percent(difference.value, '+')} ({bounds(difference.lo, difference.hi, sign='+')})" if difference else NONE
    )
    return comparison.recipe, _cell(comparison.published), _cell(comparison.reproduced), text, comparison.verdict


def _cell(score: Bounded | None) -> str:
    if score is None:
        return NONE
    return f"{percent(score.value)} ({bounds(score.lo, score.hi)}) of {score.n or 'an unknown number'}"


def _notes(comparison: PublishedComparison, short: bool = False) -> Iterator[str]:
    """``short``: only the first sentence of each doubt, with a reference to the rest."""
    if comparison.reason:
        yield f"cannot tell: {comparison.reason}"
    yield f"compared: {comparison.task} {comparison.metric}"
    yield f"published as: {comparison.measures}" + (f" ({comparison.source})" if comparison.source else "")
    if comparison.deviations:
        yield "deviations from the recipe: " + "; ".join(comparison.deviations)
    if comparison.settings == "unrecorded":
        yield "its settings were not published: the recipe has the closest that its authors ship or recommend"
    elif comparison.missing:
        yield "settings that were not published: " + ", ".join(comparison.missing)
    doubts = [_SENTENCE.split(doubt, maxsplit=1)[0] if short else doubt for doubt in comparison.doubts]
    yield from (f"doubt: {doubt}" for doubt in doubts)
    if doubts != list(comparison.doubts):
        yield f"more on these doubts: dare-bench ls recipes {comparison.recipe}"
    yield from comparison.notes


def task_elements(tasks: Sequence[SharedTask]) -> Iterator[Element]:
    """The section; empty if no task is in several runs."""
    if not tasks:
        return
    yield Heading("The same task?")
    several = len({task.harness for task in tasks}) > 1
    titles = [f"{task.task} ({task.harness})" if several else task.task for task in tasks]
    for task, title in zip(tasks, titles, strict=True):
        alike: dict[tuple[str, ...], list[TaskChange]] = {}
        for change in task.changes:
            alike.setdefault((*change.breaks, *change.notes), []).append(change)
        for texts, changes in alike.items():
            others = [change.second for change in changes]
            several = len(others) > 1
            yield Heading(f"{title}: {changes[0].first} and {f'{len(others)} others' if several else others[0]}", 3)
            yield Bullets(*([*([listed(others, most)] if several else []), *texts] for most in (len(others), 5)))
    for recorded, qualified in ((True, ""), (False, ", as far as external results record them")):
        same = dict.fromkeys(
            title for task, title in zip(tasks, titles, strict=True) if not task.changes and task.recorded == recorded
        )
        if same:
            yield Paragraph(f"Same prompts, targets, filters and scorer in all runs{qualified}: {', '.join(same)}.")
