"""The order of a board's rows: badges, means, ranks.

Rows of the same documents are compared by the paired test, with Holm's method over all such comparisons of a row, so
that its band of ranks covers the true rank with 95% (Mogstad, Romano, Shaikh and Wilhelm, Review of Economic Studies
91, 2024). Other rows are compared by their intervals. The documents' values are read again only when a file of the run
has changed.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from dare_bench.analysis.intervals import LEVEL, Interval, mean_of
from dare_bench.analysis.paired_tests import SIGNIFICANT, all_pairs, holm
from dare_bench.analysis.pairing import DocumentValues, score_of, values_of
from dare_bench.analysis.task_changes import DatedScore, QuestionDifference, current, question_difference
from dare_bench.errors import DareError
from dare_bench.leaderboards.board import Board, TaskColumn
from dare_bench.leaderboards.board_rows import (
    BADGES,
    Badge,
    BoardRow,
    badge,
    cells_of,
    fold_seeds,
    group_rows,
    limit_text,
)
from dare_bench.leaderboards.entries import BoardEntry, RunScore
from dare_bench.leaderboards.site import Site
from dare_bench.runs.results import weights_of
from dare_bench.runs.scores import Score


@dataclass(frozen=True, slots=True)
class Stratum:
    """One task behind a score, which is the mean of its tasks' means by ``weight``. Two runs with the same
    ``documents`` have values of the same documents, in the same order. ``ids``: None where they are 0, 1, 2 ..."""

    weight: float
    documents: str
    values: list[float]
    task: str
    ids: list[str] | None


def document_values(site: Site, entry: BoardEntry, score: Score) -> list[Stratum]:
    """The strata that a score is the mean of; none where it is not a mean over documents, or they cannot be read."""
    inputs = (entry.state, entry.files)
    name = f"values {entry.slug} {score.task} {score.key}"
    own = _on_pages(site, entry, score.task, score.key)
    tasks = [[1.0, *own]] if own else site.part(name, inputs, lambda: _read(site, entry, score))["tasks"]
    return [
        Stratum(weight, documents, [float(value) for value in values], task, ids)
        for weight, task, documents, values, ids in tasks
    ]


def _on_pages(site: Site, entry: BoardEntry, task: str, key: str) -> list[Any] | None:
    """The facts of a task's headline, which were read with its sample pages."""
    pages = site.parts.get(f"samples {entry.slug} {task}")
    facts: list[Any] | None = pages.facts.get("values", {}).get(key) if pages is not None else None
    return facts


def _read(site: Site, entry: BoardEntry, score: Score) -> Mapping[str, Any]:
    """The facts of a part."""
    tasks = []
    try:
        run = entry.open()
        rows = {**run.results.get("results", {}), **(run.results.get("groups") or {})}
        for task, weight in (weights_of(run.results, rows, score.task, score.key) or {}).items():
            if known := _on_pages(site, entry, task, score.key):
                tasks.append([weight, *known])
                continue
            values = values_of(run, score_of(run, task, score.key), [task])
            if values.problem() is not None:
                return {"tasks": []}
            tasks.append([weight, *stratum_facts(task, values)])
    except DareError:  # unreadable samples are reported when their pages are written
        return {"tasks": []}
    return {"tasks": tasks}


def stratum_facts(task: str, values: DocumentValues) -> list[Any]:
    """A stratum without its weight, as JSON; values that are all 0 or 1 are a string of digits."""
    ids = sorted(values.parts, key=numeric_order)
    numbers = values.of(ids)
    is_binary = all(number in (0.0, 1.0) for number in numbers)
    documents = hashlib.sha256(repr([(doc, values.targets[doc]) for doc in ids]).encode()).hexdigest()[:16]
    return [task, documents, "".join(str(int(number)) for number in numbers) if is_binary else numbers, named_ids(ids)]


def named_ids(ids: Sequence[str]) -> list[str] | None:
    """The ids, or None for 0, 1, 2 ..."""
    return None if all(doc == str(at) for at, doc in enumerate(ids)) else list(ids)


def numeric_order(doc: str) -> tuple[float, str]:
    """Sort ids as numbers, as in the sample lines, so that random tests draw the same as in ``compare``."""
    return (int(doc), "") if doc.isdecimal() and len(doc) < 16 else (math.inf, doc)


Documents = tuple[tuple[float, str], ...]
"""The weight and the documents of each stratum of a row."""


def settled(board: Board, columns: Sequence[TaskColumn], entries: Sequence[BoardEntry]) -> Board:
    """Resolve ``rank_by: auto``: the mean if half of the rows have all tasks, else the task that most rows have. Rows
    of external results are not counted unless there are no others."""
    if board.rank_by != "auto":
        return board
    columns = [column for column in columns if column.ranked]
    ours = [entry for entry in entries if not entry.is_external] or entries
    rows = [cells_of(row, columns) for row in group_rows(ours, board.rows == "run")]
    scored = [cells for cells in rows if any(cells)]
    complete = sum(all(cells) for cells in scored)
    counts = [sum(cells[at] is not None for cells in scored) for at in range(len(columns))]
    most_common = columns[counts.index(max(counts))].task if columns else "mean"
    return board.model_copy(update={"rank_by": "mean" if 2 * complete >= len(scored) else most_common})


def most_filled(rows: Sequence[BoardRow], columns: Sequence[TaskColumn]) -> list[int]:
    """The numbers of the columns of a sparse board, in which less than half of the cells have a score, the fullest
    column first; none of another board."""
    scored = [row.cells for row in rows if any(row.cells)]
    counts = [sum(cells[at] is not None for cells in scored) for at in range(len(columns))]
    if 2 * sum(counts) >= len(scored) * len(columns):
        return []
    return [at for at in sorted(range(len(columns)), key=lambda at: -counts[at]) if counts[at]]


def make_rows(
    board: Board, columns: Sequence[TaskColumn], entries: Sequence[BoardEntry], site: Site | None = None
) -> list[BoardRow]:
    """The rows of a board, best first, then those without rank, newest first. ``site`` caches the documents' values and
    tests; without it only intervals are compared."""
    rows = [BoardRow(row, cells_of(row, columns)) for row in group_rows(entries, board.rows == "run")]
    rows = fold_seeds(rows) if board.rows == "checkpoint" else rows
    rows = [row for row in rows if board.tasks == "all" or any(row.cells) or row.main.status == "running"]
    questions = questions_of(rows, columns)
    ranked = board.ranked(columns)
    for row in rows:
        row.badges = list(_badges(row, columns, questions, board.rank_by))
        for each in {id(each): each for each in (row, *row.members)}.values():
            _add_mean(each, [each.cells[at] for at in ranked])
    comparable = _comparable(rows, board, columns)
    _rank(comparable, _paired(site, board.title, comparable, ranked) if site else {})
    newest_first = sorted(rows, key=lambda row: row.created, reverse=True)
    # Within a shared rank the better point estimate comes first.
    return sorted(newest_first, key=lambda row: (row.rank is None, row.rank or 0, -row.sign * (row.mean or 0.0)))


def questions_of(rows: Sequence[BoardRow], columns: Sequence[TaskColumn]) -> list[DatedScore | None]:
    """A score of each column's current question."""
    return [current(dated(cell) for row in rows if (cell := row.cells[at]) is not None) for at in range(len(columns))]


def dated(cell: RunScore) -> DatedScore:
    """A cell's score with its date and prompts."""
    entry = cell.entry
    return DatedScore(cell.score, entry.created, entry.complete, entry.contexts[cell.score.task])


def _badges(
    row: BoardRow, columns: Sequence[TaskColumn], questions: Sequence[DatedScore | None], rank_by: str
) -> Iterator[Badge]:
    """The badges of a row; ``questions`` are the columns' current questions."""
    statuses = {entry.status for entry in row.entries}
    if unknown := [name for entry in row.entries for name in entry.unknown]:
        yield badge("external", detail=", ".join(unknown))
    failures = sum(entry.failures for entry in row.entries)
    if "running" in statuses:
        yield badge("running")
    elif "incomplete" in statuses or failures:
        yield badge("incomplete", f"incomplete: {failures} failed")
    if any(cell is not None and cell.score.limited for cell in row.cells):
        yield badge("limited", limit_text(row.entries))
    if edited := [task for entry in row.entries for task in entry.edited]:
        yield badge("edited", detail=", ".join(edited))
    if any(entry.results_edited for entry in row.entries):
        yield badge("results")
    if programs := [entry.programs for entry in row.entries if entry.programs]:
        yield Badge("programs", BADGES["programs"][0], "; ".join(programs))
    if any(entry.rescored for entry in row.entries):
        yield badge("rescored")
    if any(entry.unsafe for entry in row.entries):
        yield badge("unsafe")
    differing: dict[QuestionDifference, list[str]] = {"definition": [], "prompts": []}
    for column, cell, question in zip(columns, row.cells, questions, strict=True):
        if cell is not None and (kind := question_difference(dated(cell), question)) is not None:
            differing[kind].append(column.name)
    if differing["definition"]:
        yield badge("stale", detail=", ".join(differing["definition"]))
    if differing["prompts"]:
        yield badge("prompts", detail=", ".join(differing["prompts"]))
    ranked = [(column, cell) for column, cell in zip(columns, row.cells, strict=True) if column.ranked]
    missing = [column for column, cell in ranked if cell is None]
    if missing and "running" not in statuses:
        text = f"{len(missing)} of {len(ranked)} tasks missing"
        unranks = any(rank_by in ("mean", "none", column.task) for column in missing)
        yield Badge("missing", text, ", ".join(column.name for column in missing), unranks)


def _add_mean(row: BoardRow, ranked: Sequence[RunScore | None]) -> None:
    """Fill in what the row is ranked by: one task's score, or the mean over all. In a mean, a share without an interval
    has the interval 0 to 1."""
    scores = [cell.score for cell in ranked if cell is not None]
    if not scores or len(scores) < len(ranked):
        return
    intervals = [Interval(s.method, s.level or LEVEL, s.lo, s.hi, s.n) for s in scores]
    if len(scores) == 1:
        row.mean, row.mean_interval = scores[0].value, intervals[0]
    else:
        bounded = [
            replace(interval, lo=0.0, hi=1.0) if interval.lo is None and score.is_share else interval
            for interval, score in zip(intervals, scores, strict=True)
        ]
        row.mean, row.mean_interval = mean_of(bounded, [score.value for score in scores])


def _comparable(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> list[BoardRow]:
    """The rows that may be ranked; none where a mean would mix scores of different directions or scales. A row without
    an interval gets a badge."""
    if _unranked_board(rows, board, columns):
        return []
    for row in rows:
        if row.mean is not None and (row.mean_interval is None or row.mean_interval.lo is None):
            row.badges.append(badge("uncertain"))
    return [row for row in rows if not row.unranked_by and row.mean is not None]


def _unranked_board(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> str:
    """Why this board has no ranks, whatever its rows are; empty if it has."""
    ours = [row for row in rows if not row.main.is_external]
    ranked = board.ranked(columns)
    scores = [cell.score for row in ours for at in ranked if (cell := row.cells[at]) is not None]
    if board.rank_by == "none":
        return "this board is declared without a ranking."
    if not columns:
        return "no run has a score yet."
    if board.rank_by == "mean" and len(ranked) > 1 and not all(s.is_share and s.higher_is_better for s in scores):
        return "its tasks have scores of different scales or directions, which have no meaningful mean."
    return ""


def unranked_reason(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> str:
    """The reason, as the end of a sentence, where no row has a rank; empty where one has."""
    if any(row.rank is not None for row in rows):
        return ""
    return _unranked_board(rows, board, columns) or "see the badges in the table."


def _rank(comparable: Sequence[BoardRow], paired: dict[int, dict[int, float]]) -> None:
    """Rank = 1 + the number of rows that are better; its band ends before the rows that are worse. ``paired``: for each
    row (by index) the adjusted p of its comparisons with rows of the same documents."""
    for at, row in enumerate(comparable):
        others = [(other, paired.get(at, {}).get(index)) for index, other in enumerate(comparable) if other is not row]
        row.rank = 1 + sum(_above(other, row, p) for other, p in others)
        row.last = len(comparable) - sum(_above(row, other, p) for other, p in others)
    ranks = Counter(row.rank for row in comparable)
    for row in comparable:
        row.shared = ranks[row.rank] > 1


def column_bands(rows: Sequence[BoardRow], at: int) -> list[tuple[int, int] | None]:
    """The band of ranks of each row by one column alone, from the intervals; None for a row without an interval there,
    or with a badge other than that of missing tasks."""
    ends: dict[int, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        cell = row.cells[at]
        if cell is None or cell.score.lo is None or cell.score.hi is None:
            continue
        if all(badge.kind == "missing" for badge in row.unranked_by):
            lower = cell.score.higher_is_better is False
            ends[number] = (-cell.score.hi, -cell.score.lo) if lower else (cell.score.lo, cell.score.hi)
    lows, highs = (sorted(values) for values in zip(*ends.values(), strict=True)) if ends else ([], [])
    bands: list[tuple[int, int] | None] = [None] * len(rows)
    for number, (lo, hi) in ends.items():
        bands[number] = 1 + len(lows) - bisect_right(lows, hi), len(highs) - bisect_left(highs, lo)
    return bands


def _paired(site: Site, title: str, rows: Sequence[BoardRow], ranked: Sequence[int]) -> dict[int, dict[int, float]]:
    """The p of the paired test of all pairs of rows of the same documents, adjusted for each row by Holm's method over
    all its comparisons."""
    by_row: dict[int, dict[int, float]] = defaultdict(dict)
    for (row, other), p in pair_p(site, title, rows, ranked).items():
        by_row[row][other] = p
    return {
        row: {other: p for other, p in zip(others, holm([*others.values()]), strict=True) if p is not None}
        for row, others in by_row.items()
    }


def pair_p(site: Site, title: str, rows: Sequence[BoardRow], ranked: Sequence[int]) -> dict[tuple[int, int], float]:
    """The unadjusted p of the test that ranks, for all pairs of rows (by index) of the same documents: in the columns
    ``ranked`` of the board called ``title``."""
    p_values: dict[tuple[int, int], float] = {}
    for key, strata in _same_documents(site, rows, ranked).items():
        # Cached in the site: a rebuild without a change needs no statistics.
        values = [*strata.values()]
        facts = site.part(f"p of pairs {title} {key}", values, partial(_all_p, values))
        p_values |= {(a, b): facts["p"][i][j] for i, a in enumerate(strata) for j, b in enumerate(strata) if i != j}
    return p_values


def _same_documents(
    site: Site, rows: Sequence[BoardRow], ranked: Sequence[int]
) -> dict[Documents, dict[int, list[Stratum]]]:
    """Groups of rows (by index) of the same documents, with the values by which they are ranked."""
    groups: dict[Documents, dict[int, list[Stratum]]] = defaultdict(dict)
    for at, row in enumerate(rows):
        cells = [cell for column in ranked if (cell := row.cells[column]) is not None]
        values = [_values_of(site, cell) for cell in cells]
        if all(values):
            strata = [replace(stratum, weight=stratum.weight / len(cells)) for of_cell in values for stratum in of_cell]
            groups[tuple((round(stratum.weight, 9), stratum.documents) for stratum in strata)][at] = strata
    return {key: strata for key, strata in groups.items() if len(strata) > 1}


def _values_of(site: Site, cell: RunScore) -> list[Stratum]:
    """The strata of a score; of several seeds, the mean value of each document. None where they have no common ones."""
    seeds = [document_values(site, each.entry, each.score) for each in cell.seeds or (cell,)]
    documents = [[(round(stratum.weight, 9), stratum.documents) for stratum in strata] for strata in seeds]
    if any(each != documents[0] for each in documents):
        return []
    return [
        replace(of_seeds[0], values=[fmean(values) for values in zip(*(each.values for each in of_seeds), strict=True)])
        for of_seeds in zip(*seeds, strict=True)
    ]


def _all_p(rows: Sequence[Sequence[Stratum]]) -> dict[str, list[list[float]]]:
    strata = [[row[at].values for row in rows] for at in range(len(rows[0]))]
    return {"p": all_pairs(strata, [stratum.weight for stratum in rows[0]])}


def _above(other: BoardRow, row: BoardRow, p: float | None) -> bool:
    """Is ``other`` better than ``row``, by the p of their paired test, or without a test by their intervals?"""
    assert other.mean is not None and row.mean is not None
    if p is not None:
        return p <= SIGNIFICANT and row.sign * (other.mean - row.mean) > 0
    lo, hi = _bounds(row)
    other_lo, other_hi = _bounds(other)
    return other_lo > hi if row.sign > 0 else other_hi < lo


def _bounds(row: BoardRow) -> tuple[float, float]:
    interval = row.mean_interval
    assert interval is not None and interval.lo is not None and interval.hi is not None  # else it is not comparable
    return interval.lo, interval.hi
