"""Runs as a table for a paper: a row for each checkpoint, a column for each task, with marks and best scores.

The formats (Markdown, LaTeX, CSV) are in :mod:`dare_bench.reports.export_formats`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dare_bench.analysis.names import (
    Checkpoint,
    base_of,
    checkpoint_of,
    distinguishing,
    lineage_of,
    short_names,
    trainings,
)
from dare_bench.analysis.settings import SEED, models_of, named_model, prompt_context, seed_setting
from dare_bench.analysis.task_changes import DatedScore, current, question_difference
from dare_bench.errors import RunError, unknown
from dare_bench.program import several
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import Score, headline, opened_with
from dare_bench.runs.text import counted, listed

Mark = Literal["limited", "incomplete", "definition", "prompts", "approximate", "doubtful", "external"]
MARK_NOTES: dict[Mark, str] = {
    "limited": "only a part of the task's documents",
    "incomplete": "not complete: documents without an answer are left out, or the run is not finished",
    "definition": "another task version than the newest complete run's: different prompt templates, filters or scorer",
    "prompts": "different examples, chat template or documents from those of the newest complete run",
    "doubtful": "answered by several programs, or the file of results was changed after the run",
    "external": "external: from the command-line tool of lm-eval or OpenCompass, not compared: settings are missing",
    "approximate": "approximate sampler (tier A): its distribution differs from the published sampler's",
}
"""The footnote of each mark."""
_COMPARED: frozenset[Mark] = frozenset({"approximate"})
"""Marks of cells that are compared with the others of their column."""


@dataclass(slots=True)
class ExportCell:
    """One score of a row. ``best``: the best of its column, or one whose interval overlaps the best one's. ``passes``:
    forward passes per request, where the run recorded them by task."""

    score: Score
    marks: tuple[Mark, ...] = ()
    passes: float | None = None
    best: bool = False


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A task and its headline metric. ``n``: the documents behind each cell, None where cells differ; ``share``: all
    values are shares from 0 to 1, shown in percent; ``lower``: lower values are better."""

    task: str
    key: str
    name: str
    share: bool
    lower: bool
    n: int | None


@dataclass(slots=True)
class ExportRow:
    """One checkpoint under one set of settings; ``cells`` follow the columns. ``rank``: its ranks on a board."""

    name: str
    settings: str
    cells: list[ExportCell | None]
    rank: str = ""


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """``notes`` are the footnotes without a mark; :data:`MARK_NOTES` has those of the marks."""

    columns: list[ExportColumn]
    rows: list[ExportRow]
    notes: list[str] = field(default_factory=list)

    def marks(self) -> list[Mark]:
        seen = {mark for row in self.rows for cell in row.cells if cell for mark in cell.marks}
        return [mark for mark in MARK_NOTES if mark in seen]

    def cells(self) -> Iterator[ExportCell]:
        return (cell for row in self.rows for cell in row.cells if cell is not None)


class Way(NamedTuple):
    """How a task was asked: after how many examples, by which harness, and of whom (dare-bench's own sampler, a server,
    or a program outside)."""

    shots: str
    harness: str
    model: str


RowScores = dict[str, dict[Way, tuple[Run, Score]]]
"""The scores of one row by task, each with its run."""


def score_table(runs: Sequence[Run], tasks: Sequence[str] | None = None) -> ScoreTable:
    """The table of these runs. ``tasks``: which ones and in what order (default: all that are part of no group).

    Runs of one checkpoint with equal settings share a row, whatever harness asked, after however many examples, and
    whatever server answered. Where one row has a task in several of these ways, each has a column. Other variants of a
    task (by limit or prompts) have two rows; of duplicate runs the most complete and newest is taken.

    Raises:
        RunError: none of the runs has a score.
        UnknownNameError: a task that no run has.
    """
    scored = [run for run in runs if run.block is not None and run.scores()]
    if not scored:
        raise RunError(f"none of the {len(runs)} runs has a score yet; finish one by running its command again")
    selected = _tasks(scored, tasks)
    models, grouped, duplicates = _grouped(scored, selected)
    checkpoints = _weights(models)
    by_checkpoint = short_names(zip(checkpoints, map(lineage_of, models), strict=True))
    names = [by_checkpoint[checkpoint] for checkpoint in checkpoints]
    rows = [ExportRow(*texts, []) for texts in zip(names, _settings(grouped, names), strict=True)]
    columns = []
    for task, way, answers in _answers(grouped, selected):
        keys = list(dict.fromkeys(answer[1].key for answer in answers if answer))
        for key in keys:
            cells = _cells(answers, key)
            for row, cell in zip(rows, cells, strict=True):
                row.cells.append(cell)
            present = [cell for cell in cells if cell is not None]
            details = [part for part in (way, key.removesuffix(",none") if len(keys) > 1 else "") if part]
            name = f"{task} ({', '.join(details)})" if details else task
            columns.append(export_column(task, key, name, [cell.score for cell in present]))
            mark_best(present)
    table = ScoreTable(columns, rows)
    table.notes.extend(table_notes(table))
    if duplicates:
        left_out = counted(duplicates, "score")
        table.notes.append(f"Left out: {left_out} with the same checkpoint, task and settings as others here.")
    return table


def _tasks(runs: Sequence[Run], tasks: Sequence[str] | None) -> list[str]:
    if tasks is None:
        return list(dict.fromkeys(task for run in runs for task in run.top_level()))
    scored = {score.task for run in runs for score in run.scores()}
    for task in tasks:
        if task not in scored:
            raise unknown("task", task, scored)
    return list(dict.fromkeys(tasks))


def _grouped(runs: Sequence[Run], tasks: Sequence[str]) -> tuple[list[Run], list[RowScores], int]:
    """For each row a run that says what its checkpoint is, and the scores, a checkpoint before those trained from it;
    and the number of duplicate scores that were left out."""
    model_of = models_of(runs)
    grouped: dict[Run, list[RowScores]] = {}
    duplicates = 0
    newest = sorted(runs, key=lambda run: run.created, reverse=True)
    # The best duplicate comes first: complete before partial, then the newest.
    for run in sorted(newest, key=lambda run: run.status != "complete"):
        rows = grouped.setdefault(model_of[run], [])
        for task in tasks:
            if (score := headline(run.scores(), task)) is None:
                continue
            way = _way(run, task)
            others = [row[task][way][1] for row in rows if way in row.get(task, {})]
            if any(other.fingerprint == score.fingerprint != UNKNOWN for other in others):
                duplicates += 1
                continue
            row = next((row for row in rows if way not in row.get(task, {})), None)
            if row is None:
                rows.append(row := {})
            row.setdefault(task, {})[way] = (run, score)
    order = {run: at for at, run in enumerate(runs)}
    found = [(model, row) for model, rows in grouped.items() for row in rows]
    found.sort(key=lambda place: min(order[run] for _, run, _ in _scores(place[1])))
    placed = [(*_family_and_depth(model), model, row) for model, row in found]
    families = list(dict.fromkeys(family for family, *_ in placed))
    placed.sort(key=lambda place: (families.index(place[0]), place[1]))
    return [model for _, _, model, _ in placed], [row for *_, row in placed], duplicates


def _way(run: Run, task: str) -> Way:
    block = run.require_block()
    model = "external" if run.is_external else block.model.engine.label if block.model.engine else "native"
    return Way(prompt_context(run, task).shots_text or "examples not recorded", block.harness.name, model)


def _scores(row: RowScores) -> list[tuple[str, Run, Score]]:
    return [(task, *answer) for task, answers in row.items() for answer in answers.values()]


def _answers(
    grouped: Sequence[RowScores], tasks: Sequence[str]
) -> Iterator[tuple[str, str, list[tuple[Run, Score] | None]]]:
    """A task, how it was asked (empty where no row has it in several ways), and each row's score of it."""
    for task in tasks:
        of_rows = [row.get(task, {}) for row in grouped]
        if all(len(answers) < 2 for answers in of_rows):
            yield task, "", [next(iter(answers.values()), None) for answers in of_rows]
            continue
        ways = list(dict.fromkeys(way for answers in of_rows for way in answers))
        for way, [details] in zip(ways, distinguishing([[way._asdict()] for way in ways]), strict=True):
            yield task, ", ".join(details), [answers.get(way) for answers in of_rows]


def _weights(models: Sequence[Run]) -> list[Checkpoint]:
    """Equal for two models of the same weights under the same name, in whatever precision. One of unknown content has
    the weights of the others that name its checkpoint, if those are equal."""
    weights = {run: checkpoint_of(run)._replace(dtype="") for run in models}
    named = {run: named_model(run) for run in models}
    hashed = [run for run in models if run.require_block().model.content_hash != UNKNOWN]
    for run in weights.keys() - hashed:
        known = {weights[other] for other in hashed if named[run] and named[other] == named[run]}
        content = str(named[run] or run.path.resolve())
        weights[run] = next(iter(known)) if len(known) == 1 else weights[run]._replace(content=content)
    return [weights[run] for run in models]


def _family_and_depth(run: Run) -> tuple[str, int]:
    """The checkpoint from which all training started, and the number of trainings since."""
    chain = trainings(lineage_of(run))
    return (base_of(chain[0]) if chain else checkpoint_of(run).name), len(chain)


def _settings(grouped: Sequence[RowScores], names: Sequence[str]) -> list[str]:
    """The settings of each row; rows that are otherwise equal (other prompts or documents) have fingerprints, those of
    external results dates."""
    scores = [_scores(row) for row in grouped]
    texts = settings_texts([[(run, task) for task, run, _ in row] for row in scores])
    labels = list(zip(names, texts, strict=True))
    for at, row in enumerate(scores):
        if labels.count(labels[at]) > 1:
            known = dict.fromkeys(score.fingerprint[:8] for *_, score in row if score.fingerprint != UNKNOWN)
            difference = (
                f"fingerprint {'+'.join(known)}" if known else f"of {min(run.created for _, run, _ in row)[:19]}"
            )
            texts[at] = ", ".join(filter(None, [texts[at], difference]))
    return texts


def _cells(of_task: Sequence[tuple[Run, Score] | None], key: str) -> list[ExportCell | None]:
    answers = [answer if answer and answer[1].key == key else None for answer in of_task]
    dated = [answer and _dated(*answer) for answer in answers]
    question = current(filter(None, dated))
    return [
        ExportCell(score.score, tuple(_marks(answer[0], score, question)), answer[0].nfe_per_request(score.score.task))
        if answer and score
        else None
        for answer, score in zip(answers, dated, strict=True)
    ]


def _dated(run: Run, score: Score) -> DatedScore:
    return DatedScore(score, run.created, not _is_incomplete(run, score), prompt_context(run, score.task))


def _is_incomplete(run: Run, score: Score) -> bool:
    if run.block is None or run.status == "running":
        return True
    return run.failed_documents(score.task) > 0 if run.block.failures else run.status != "complete"


def _marks(run: Run, dated: DatedScore, question: DatedScore | None) -> Iterator[Mark]:
    is_doubtful = run.results_edited or (run.block is not None and bool(several(run.block.programs)))
    return marks(dated, question, is_external=run.is_external, is_doubtful=is_doubtful)


def marks(dated: DatedScore, question: DatedScore | None, *, is_external: bool, is_doubtful: bool) -> Iterator[Mark]:
    """The marks of a score beside those of its task's ``question``, that of the newest complete run."""
    if dated.score.limited:
        yield "limited"
    if is_external:
        yield "external"
    elif not dated.complete:
        yield "incomplete"
    if (kind := question_difference(dated, question)) is not None:
        yield kind
    if dated.score.tier == "A":
        yield "approximate"
    if is_doubtful:
        yield "doubtful"


def export_column(task: str, key: str, name: str, scores: Sequence[Score]) -> ExportColumn:
    """The column of these scores."""
    counts = {score.n for score in scores}
    return ExportColumn(
        task,
        key,
        name,
        all(score.is_share for score in scores),
        any(score.higher_is_better is False for score in scores),
        counts.pop() if len(counts) == 1 else None,
    )


def mark_best(cells: Sequence[ExportCell]) -> None:
    """Mark the best cell of a column and those whose intervals overlap its interval. A score without an interval is
    taken as exact; with less than two comparable scores, or without a known direction, none is best."""
    compared = [cell for cell in cells if _COMPARED.issuperset(cell.marks)]
    directions = {cell.score.higher_is_better for cell in compared}
    if len(compared) < 2 or len(directions) > 1 or None in directions:
        return
    sign = 1 if True in directions else -1
    best = max(compared, key=lambda cell: sign * cell.score.value)
    worst_of_best = min(sign * bound for bound in _bounds(best.score))
    for cell in compared:
        cell.best = max(sign * bound for bound in _bounds(cell.score)) >= worst_of_best


def _bounds(score: Score) -> tuple[float, float]:
    return (score.value, score.value) if score.lo is None or score.hi is None else (score.lo, score.hi)


def table_notes(table: ScoreTable) -> Iterator[str]:
    """What the scores are, where lower is better, and what is bold."""
    columns = table.columns
    metrics = {column.task: column.key.removesuffix(",none") for column in columns}
    percent = "; shares in percent" if any(column.share for column in columns) else ""
    if len(metrics) == len({(column.task, column.key) for column in columns}):  # otherwise the columns' names have them
        keys = dict.fromkeys(metrics.values())
        texts = list(keys) if len(keys) == 1 else [f"{task} {key}" for task, key in metrics.items()]
        yield f"Score: {', '.join(texts)}{percent}."
    elif percent:
        yield "Shares in percent."
    if lower := [column.name for column in columns if column.lower]:
        yield f"Lower is better: {', '.join(lower)}."
    if any(cell.best for cell in table.cells()):
        yield (
            "Bold: the best of a column and every score whose interval overlaps the best one's; scores with a footnote,"
            " unless it is that of approximate samplers, are not compared."
        )


Shown = Sequence[tuple[Run, str]]
"""The runs of a row, each with the task or group whose score the row shows."""
_ByTask = Mapping[str, Any]
"""The values of a setting by task; a setting of the whole row has one, under ""."""


def settings_texts(rows: Sequence[Shown]) -> list[str]:
    """For each row the settings that differ from another row's; empty where none do."""
    blocks = [run.block for row in rows for run, _ in row if run.block is not None]
    decoding = list(dict.fromkeys(name for block in blocks for name in block.decoding_requested))
    settings = [_row_settings(row, decoding) for row in rows]
    texts = (
        [
            _setting_in_words(name, values)
            for name, values in row.items()
            if any(name in other and _differ(values, other[name]) for other in settings)
        ]
        for row in settings
    )
    return [", ".join(filter(None, of_row)) for of_row in texts]


def _differ(first: _ByTask, second: _ByTask) -> bool:
    """Do the values differ in a common task, or without one at all?"""
    if common := first.keys() & second.keys():
        return any(str(first[task]) != str(second[task]) for task in common)
    return set(map(str, first.values())) != set(map(str, second.values()))


def _setting_in_words(name: str, values: _ByTask) -> str:
    """``gen_length 256``, or where tasks differ ``gen_length 256 (gsm8k), 512 (humaneval)``."""
    tasks_of: dict[str, list[str]] = {}
    for task, value in values.items():
        if value is not None:
            tasks_of.setdefault(str(value), []).append(task)
    if not tasks_of:
        return ""
    if [*tasks_of.values()] == [[*values]]:
        return f"{name} {next(iter(tasks_of))}"
    return f"{name} " + ", ".join(f"{value} ({listed(tasks, 3)})" for value, tasks in tasks_of.items())


def _row_settings(row: Shown, decoding: Sequence[str]) -> dict[str, _ByTask]:
    settings: dict[str, dict[str, Any]] = {name: {} for name in decoding}
    for run, shown in row:
        block = run.require_block()
        tasks = block.tasks
        for task in filter(tasks.__contains__, members(run.results, shown)):
            used = block.decoding_requested if run.is_external else tasks[task].decoding
            of_task = {name: used[name] for name in decoding if name in used}
            for name, value in {**of_task, **tasks[task].likelihood}.items():
                settings.setdefault(name, {})[task] = value
    of_run = dict(_of_run(row[0][0]))
    if any(run.require_block().harness.name != of_run["harness"] for run, _ in row):
        of_run["harness"] = UNKNOWN
    settings |= {name: {"": value} for name, value in of_run.items() if value != UNKNOWN}
    return {name: values for name, values in settings.items() if values}


def _of_run(run: Run) -> Iterator[tuple[str, Any]]:
    """The settings that all tasks of a row have in common."""
    block, results = run.require_block(), run.results
    yield from {"dtype": block.model.dtype, **opened_with(results)}.items()
    yield from {"harness": block.harness.name, "answers to each prompt": block.repeats}.items()
    yield SEED, seed_setting(block.seeds) if block.seeds else UNKNOWN
    template = results.get("chat_template_sha")
    yield "chat template", str(template)[:8] if template else "not applied"
    if template:
        yield "examples as turns", results.get("fewshot_as_multiturn")
