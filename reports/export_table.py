"""Runs as the table of a paper: checkpoints down, tasks across; what stands in a cell, what is bold, what is marked.

How it is written (markdown, LaTeX, CSV) is :mod:`dare_bench.reports.export_formats`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dare_bench.analysis.rows import RowKey, row_key
from dare_bench.analysis.settings import prompt_context
from dare_bench.analysis.standing import DatedScore, present, question_difference
from dare_bench.errors import RunError, unknown
from dare_bench.program import several
from dare_bench.reports.export_names import (
    checkpoint_names,
    checkpoint_of,
    family_and_depth,
    settings_texts,
)
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Block
from dare_bench.runs.scores import Score, headline, is_share
from dare_bench.runs.text import counted

Mark = Literal["limited", "incomplete", "definition", "prompts", "approximate", "doubtful"]
WHY: dict[Mark, str] = {
    "limited": "only a part of the task's documents was asked",
    "incomplete": "not complete: documents without an answer are left out, or the run is not finished",
    "definition": "another version of the task than in the newest complete run: prompt templates, filters or scorer"
    " differ",
    "prompts": "other examples, chat template or documents than in the newest complete run",
    "doubtful": "answered by several programs, or the file of results was changed after the run",
    "approximate": "approximate sampler (tier A): it draws from another distribution than the reference",
}
"""What each mark of a cell means, in the words of the footnote."""
_COMPARED: frozenset[Mark] = frozenset({"approximate"})
"""Marks with which a cell is still compared with the others of its column."""


@dataclass(slots=True)
class ExportCell:
    """One score of a row. ``best``: the best of its column, or not separable from it by their intervals."""

    score: Score
    marks: tuple[Mark, ...] = ()
    best: bool = False


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A task and the metric that stands for it. ``n``: the documents behind every cell, None where cells differ;
    ``share``: all values are shares from 0 to 1, to be told in percent; ``lower``: lower values are better."""

    task: str
    key: str
    name: str
    share: bool
    lower: bool
    n: int | None


@dataclass(slots=True)
class ExportRow:
    """One checkpoint under one set of settings; ``cells`` follow the table's columns."""

    name: str
    settings: str
    cells: list[ExportCell | None]


@dataclass(frozen=True, slots=True)
class ScoreTable:
    """``notes`` are the plain footnotes; those of the marks are :data:`WHY`, for the marks in :meth:`marks`."""

    columns: list[ExportColumn]
    rows: list[ExportRow]
    notes: list[str] = field(default_factory=list)

    def marks(self) -> list[Mark]:
        seen = {mark for row in self.rows for cell in row.cells if cell for mark in cell.marks}
        return [mark for mark in WHY if mark in seen]

    def cells(self) -> Iterator[ExportCell]:
        return (cell for row in self.rows for cell in row.cells if cell is not None)


Answered = dict[str, tuple[Run, Score]]
"""One row: by task, the run that answers for it, and its score."""


def score_table(runs: Sequence[Run], tasks: Sequence[str] | None = None) -> ScoreTable:
    """The table of these runs. ``tasks``: which ones and in what order (default: all that are part of no group).

    Runs of one checkpoint with equal settings share a row where their tasks differ. A task asked in two ways (another
    limit, other prompts) has a row for each; of runs that are equal in everything the best one is taken.

    Raises:
        RunError: none of the runs has a score.
        UnknownNameError: a task that no run has.
    """
    scored = [run for run in runs if run.block is not None and run.scores()]
    if not scored:
        raise RunError(f"none of the {len(runs)} runs has a score yet; finish one by running its command again")
    wanted = _tasks(scored, tasks)
    grouped, doubles = _rows(scored, wanted)
    places = [(t, k) for t in wanted for k in dict.fromkeys(own[t][1].key for own in grouped if t in own)]
    rows = [_row(own, places) for own in grouped]
    _name(grouped, rows)
    _mark(grouped, rows, places)
    columns = [_column(place, places, [row.cells[at] for row in rows]) for at, place in enumerate(places)]
    for at in range(len(columns)):
        _choose([cell for row in rows if (cell := row.cells[at]) is not None])
    return ScoreTable(columns, rows, list(_notes(columns, rows, doubles)))


def _tasks(runs: Sequence[Run], tasks: Sequence[str] | None) -> list[str]:
    if tasks is None:
        return list(dict.fromkeys(task for run in runs for task in run.top_level()))
    known = {score.task for run in runs for score in run.scores()}
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    return list(dict.fromkeys(tasks))


def _rows(runs: Sequence[Run], wanted: Sequence[str]) -> tuple[list[Answered], int]:
    """The rows, and how many scores were left out as doubles. A checkpoint stands before those trained from it."""
    place = _together(runs)
    grouped: dict[int, list[Answered]] = {}
    doubles = 0
    newest = sorted(runs, key=lambda run: run.created, reverse=True)
    # The best of equal runs comes first and is kept: whole before partial, then the newest.
    for run in sorted(newest, key=lambda run: run.status != "complete"):
        rows = grouped.setdefault(place[id(run)], [])
        for task in wanted:
            if (score := headline(run.scores(), task)) is None:
                continue
            if any(task in row and row[task][1].fingerprint == score.fingerprint for row in rows):
                doubles += 1
                continue
            row = next((row for row in rows if task not in row), None)
            if row is None:
                rows.append(row := {})
            row[task] = (run, score)
    order = {id(run): at for at, run in enumerate(runs)}
    sorted_rows = [row for rows in grouped.values() for row in rows]
    sorted_rows.sort(key=lambda row: min(order[id(run)] for run, _ in row.values()))
    families = {name: at for at, name in reversed([*enumerate(_family(row)[0] for row in sorted_rows)])}
    return sorted(sorted_rows, key=lambda row: (families[_family(row)[0]], _family(row)[1])), doubles


def _together(runs: Sequence[Run]) -> dict[int, int]:
    """For each run (by its id) the number of the group whose runs may share a row, on whatever machine they ran. Parts
    of a suite find each other before a run of the same settings joins one of them."""
    groups: list[set[RowKey]] = []
    place = {}
    for run, key in sorted(((run, row_key(run)) for run in runs), key=lambda pair: pair[1].alone):
        at = next((at for at, own in enumerate(groups) if all(key.joins(other) for other in own)), len(groups))
        groups += [set()] if at == len(groups) else []
        groups[at].add(key)
        place[id(run)] = at
    return place


def _block(own: Answered) -> Block:
    """Of one of its runs: all have the same checkpoint."""
    block = next(iter(own.values()))[0].block
    assert block is not None
    return block


def _family(own: Answered) -> tuple[str, int]:
    return family_and_depth(_block(own))


def _row(own: Answered, places: Sequence[tuple[str, str]]) -> ExportRow:
    answered = [own.get(task) for task, _ in places]
    keys = [key for _, key in places]
    return ExportRow(
        "",
        "",
        [
            ExportCell(own_score[1]) if own_score and own_score[1].key == key else None
            for own_score, key in zip(answered, keys, strict=True)
        ],
    )


def _mark(grouped: Sequence[Answered], rows: Sequence[ExportRow], places: Sequence[tuple[str, str]]) -> None:
    """Fill in the marks of the cells."""
    for at, (task, _) in enumerate(places):
        column = [(own[task][0], cell) for own, row in zip(grouped, rows, strict=True) if (cell := row.cells[at])]
        asked = [
            DatedScore(cell.score, run.created, not _incomplete(run, cell.score), prompt_context(run, task))
            for run, cell in column
        ]
        now = present(asked)
        for dated, (run, cell) in zip(asked, column, strict=True):
            cell.marks = (*_marks(dated, now), *(("doubtful",) if _doubtful(run) else ()))


def _name(grouped: Sequence[Answered], rows: Sequence[ExportRow]) -> None:
    """Fill in the rows' names and settings."""
    names = checkpoint_names([_block(own) for own in grouped])
    settings = settings_texts([[run for run, _ in own.values()] for own in grouped])
    for own, text, row in zip(grouped, settings, rows, strict=True):
        row.name, row.settings = names[checkpoint_of(_block(own))], text
    twice = Counter((row.name, row.settings) for row in rows)
    for own, row in zip(grouped, rows, strict=True):
        if twice[row.name, row.settings] > 1:  # other prompts or documents, for which there are no short words
            prints = "+".join(dict.fromkeys(score.fingerprint[:8] for _, score in own.values()))
            row.settings = ", ".join(filter(None, [row.settings, f"fingerprint {prints}"]))


def _incomplete(run: Run, score: Score) -> bool:
    if run.block is None or run.status == "running":
        return True
    return run.failed_documents(score.task) > 0 if run.block.failures else run.status != "complete"


def _marks(dated: DatedScore, now: DatedScore | None) -> Iterator[Mark]:
    if dated.score.limited:
        yield "limited"
    if not dated.whole:
        yield "incomplete"
    if (kind := question_difference(dated, now)) is not None:
        yield kind
    if dated.score.tier == "A":
        yield "approximate"


def _doubtful(run: Run) -> bool:
    return bool(run.results_edited or (run.block is not None and several(run.block.programs)))


def _column(
    place: tuple[str, str], places: Sequence[tuple[str, str]], cells: Sequence[ExportCell | None]
) -> ExportColumn:
    task, key = place
    known = [cell.score for cell in cells if cell is not None]
    counts = {score.n for score in known}
    several = sum(other == task for other, _ in places) > 1
    return ExportColumn(
        task,
        key,
        f"{task} ({key.removesuffix(',none')})" if several else task,
        all(map(is_share, known)),
        any(score.higher_is_better is False for score in known),
        counts.pop() if len(counts) == 1 else None,
    )


def _choose(cells: Sequence[ExportCell]) -> None:
    """Mark the best of a column and what its interval does not separate from it. A score without an interval is taken
    as exact; with less than two comparable scores, or where nobody knows which direction is better, none is best."""
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


def _notes(columns: Sequence[ExportColumn], rows: Sequence[ExportRow], doubles: int) -> Iterator[str]:
    metrics = {column.task: column.key.removesuffix(",none") for column in columns}
    percent = "; shares in percent" if any(column.share for column in columns) else ""
    if len(metrics) == len(columns):  # else the columns' names say which metric
        alike = len({*metrics.values()}) == 1
        texts = [columns[0].key.removesuffix(",none")] if alike else [f"{task} {key}" for task, key in metrics.items()]
        yield f"Score: {', '.join(texts)}{percent}."
    elif percent:
        yield "Shares in percent."
    if lower := [column.name for column in columns if column.lower]:
        yield f"Lower is better: {', '.join(lower)}."
    if any(cell.best for row in rows for cell in row.cells if cell is not None):
        yield (
            "Bold: the best of a column and every score whose interval overlaps the best one's; scores of a part of a"
            " task, or of another version of it, take no part."
        )
    if doubles:
        yield f"Left out: {counted(doubles, 'score')} with the same checkpoint, task and settings as others here."
