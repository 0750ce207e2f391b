"""Which rows of a board may be compared, and their order: badges, the mean, the ranks.

Rows that answered the same documents are held against each other by the paired test, with Holm's method over all such
comparisons of a row, so that its band of ranks holds the true one with 95 % (Mogstad, Romano, Shaikh and Wilhelm,
Review of Economic Studies 91, 2024); others by their two intervals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dare_bench.analysis.intervals import Interval, mean_of
from dare_bench.analysis.paired_tests import all_pairs, holm
from dare_bench.analysis.standing import DatedScore, QuestionDifference, present, question_difference
from dare_bench.leaderboards.board import Board, TaskColumn
from dare_bench.leaderboards.document_values import Stratum, document_values
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.rows import Badge, BoardCell, BoardRow, cells_of, together
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import is_share

LEVEL = 0.05


def settled(board: Board, columns: Sequence[TaskColumn], entries: Sequence[BoardEntry]) -> Board:
    """``rank_by: auto`` settled: by the mean where half the rows have all tasks, else by the task that most have."""
    if board.rank_by != "auto":
        return board
    rows = [cells_of(own, columns) for own in together(entries, board.rows == "run")]
    scored = [cells for cells in rows if any(cells)]
    whole = sum(all(cells) for cells in scored)
    counts = [sum(cells[at] is not None for cells in scored) for at in range(len(columns))]
    usual = columns[counts.index(max(counts))].task if columns else "mean"
    return board.model_copy(update={"rank_by": "mean" if 2 * whole >= len(scored) else usual})


def make_rows(
    board: Board, columns: Sequence[TaskColumn], entries: Sequence[BoardEntry], site: Site | None = None
) -> list[BoardRow]:
    """The rows of a board, best first, then those without rank, newest first. ``site`` keeps what the documents'
    values show; without it the intervals decide."""
    rows = [BoardRow(own, cells_of(own, columns)) for own in together(entries, board.rows == "run")]
    rows = [row for row in rows if board.tasks == "all" or any(row.cells) or row.main.status == "running"]
    current = _now(rows, len(columns))
    for row in rows:
        row.badges = _badges(row, columns, current, board.rank_by)
        _add_mean(row, board, columns)
    comparable = _comparable(rows, board, columns)
    _rank(comparable, _paired(comparable, board, columns, site) if site else {})
    newest_first = sorted(rows, key=lambda row: row.created, reverse=True)
    # "Ties" share a rank by their intervals; within a rank the better point estimate stands first.
    return sorted(newest_first, key=lambda row: (row.rank is None, row.rank or 0, -_sign(row) * (row.mean or 0.0)))


def _dated(cell: BoardCell) -> DatedScore:
    entry = cell.entry
    return DatedScore(cell.score, entry.created, entry.complete, entry.around[cell.score.task])


def _now(rows: Sequence[BoardRow], columns: int) -> list[DatedScore | None]:
    """For each column the question as it is asked now."""
    return [present(_dated(cell) for row in rows if (cell := row.cells[at]) is not None) for at in range(columns)]


def _differing(
    row: BoardRow, columns: Sequence[TaskColumn], current: Sequence[DatedScore | None]
) -> dict[QuestionDifference, list[str]]:
    """Columns whose task has another definition than now, and those where only the prompts asked are others."""
    differing: dict[QuestionDifference, list[str]] = {"definition": [], "prompts": []}
    for column, cell, now in zip(columns, row.cells, current, strict=True):
        if cell is not None and (kind := question_difference(_dated(cell), now)) is not None:
            differing[kind].append(column.name)
    return differing


def _badges(
    row: BoardRow, columns: Sequence[TaskColumn], current: Sequence[DatedScore | None], rank_by: str
) -> list[Badge]:
    badges: list[Badge] = []
    statuses = {entry.status for entry in row.entries}
    failures = sum(entry.failures for entry in row.entries)
    if "running" in statuses:
        badges.append(Badge("running", "not finished", "The run has not been finished; the same command resumes it."))
    elif "incomplete" in statuses or failures:
        why = f"{failures} samples failed and are left out of the scores."
        badges.append(Badge("incomplete", f"incomplete: {failures} failed", why))
    if any(cell is not None and cell.score.limited for cell in row.cells):
        limits = {entry.limit for entry in row.entries if entry.limit is not None}
        text = f"limit {limits.pop():g}" if len(limits) == 1 else "some documents"
        badges.append(Badge("limited", text, "Only part of each task's documents was evaluated."))
    edited = [task for entry in row.entries for task in entry.edited]
    if edited:
        why = f"Sample files are not as the run wrote them: {', '.join(edited)}. The pages show what they hold now."
        badges.append(Badge("edited", "samples edited", why))
    if any(entry.results_edited for entry in row.entries):
        badges.append(Badge("results", "results edited", "The file of results is not as the run wrote it."))
    if programs := [entry.programs for entry in row.entries if entry.programs]:
        badges.append(Badge("programs", "answered by several programs", "; ".join(programs)))
    if any(entry.rescored for entry in row.entries):
        badges.append(Badge("rescored", "re-scored", "The recorded answers of another run, scored again."))
    if any(entry.unsafe for entry in row.entries):
        why = "--unsafe-no-sandbox was given: generated code and scorers may have run with the user's own rights."
        badges.append(Badge("unsafe", "sandbox not required", why))
    differing = _differing(row, columns, current)
    if stale := differing["definition"]:
        why = f"Templates, filters or scorer differ from those of the newest complete run: {', '.join(stale)}."
        badges.append(Badge("stale", "other task version", why))
    if prompts := differing["prompts"]:
        why = f"Examples, chat template or data differ from those of most complete runs: {', '.join(prompts)}."
        badges.append(Badge("prompts", "other prompts", why))
    missing = [column.name for column, cell in zip(columns, row.cells, strict=True) if cell is None]
    needed = any(
        cell is None and rank_by in ("mean", "none", column.task)
        for column, cell in zip(columns, row.cells, strict=True)
    )
    if needed and "running" not in statuses:
        badges.append(Badge("missing", f"{len(missing)} of {len(columns)} tasks missing", ", ".join(missing)))
    return badges


def _ranked_cells(row: BoardRow, board: Board, columns: Sequence[TaskColumn]) -> list[BoardCell | None]:
    """The cells that a row is ranked by: one task's, or all."""
    if board.rank_by == "mean":
        return row.cells
    return [cell for column, cell in zip(columns, row.cells, strict=True) if column.task == board.rank_by][:1]


def _add_mean(row: BoardRow, board: Board, columns: Sequence[TaskColumn]) -> None:
    """What the row is ranked by: one task's score, or the mean over all. Of a mean, a part without an interval may be
    anywhere between 0 and 1 if it is a share."""
    chosen = _ranked_cells(row, board, columns)
    scores = [cell.score for cell in chosen if cell is not None]
    if not scores or len(scores) < len(chosen):
        return
    intervals = [Interval(s.method, s.level or 0.95, s.lo, s.hi, s.n) for s in scores]
    if len(scores) == 1:
        row.mean, row.mean_interval = scores[0].value, intervals[0]
    else:
        known = [
            replace(one, lo=0.0, hi=1.0) if one.lo is None and is_share(score) else one
            for one, score in zip(intervals, scores, strict=True)
        ]
        row.mean, row.mean_interval = mean_of(known, [score.value for score in scores])


def _comparable(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> list[BoardRow]:
    """The rows that may be ranked; none where a mean would mix scores of different directions or scales. Of a row
    without an interval nothing is known of its rank."""
    if _unranked_board(rows, board, columns):
        return []
    for row in rows:
        if row.mean is not None and (row.mean_interval is None or row.mean_interval.lo is None):
            row.badges.append(Badge("uncertain", "no interval", "How far chance could move its score is not known."))
    return [row for row in rows if not row.badges and row.mean is not None]


def _unranked_board(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> str:
    """Why this board ranks nothing, whatever its rows are; empty if it does rank."""
    scores = [cell.score for row in rows for cell in row.cells if cell is not None]
    if board.rank_by == "none":
        return "this board is declared without a ranking."
    if not columns:
        return "no run has a score yet."
    if board.rank_by == "mean" and len(columns) > 1 and not all(is_share(s) and s.higher_is_better for s in scores):
        return "its tasks have scores of different scales or directions, of which a mean says nothing."
    return ""


def why_unranked(rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn]) -> str:
    """The reason, as the end of a sentence, where no row has a rank; empty where one has."""
    if any(row.rank is not None for row in rows):
        return ""
    return _unranked_board(rows, board, columns) or "the badges say why."


def _rank(comparable: Sequence[BoardRow], paired: dict[int, dict[int, float]]) -> None:
    """Rank = 1 + the number of rows that are better; its band ends before the rows that are worse. ``paired``: for each
    row, by place, the adjusted p of its comparisons with rows of the same documents."""
    for at, row in enumerate(comparable):
        others = [(other, paired.get(at, {}).get(place)) for place, other in enumerate(comparable) if other is not row]
        row.rank = 1 + sum(_above(other, row, p) for other, p in others)
        row.last = len(comparable) - sum(_above(row, other, p) for other, p in others)
    ranks = Counter(row.rank for row in comparable)
    for row in comparable:
        row.shared = ranks[row.rank] > 1


def _paired(
    rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn], site: Site
) -> dict[int, dict[int, float]]:
    """The p of the paired test of every two rows that answered the same documents, adjusted for each row by Holm's
    method over all its comparisons."""
    by_row: dict[int, dict[int, float]] = defaultdict(dict)
    for (row, other), p in pair_p(rows, board, columns, site).items():
        by_row[row][other] = p
    return {
        row: {other: p for other, p in zip(others, holm([*others.values()]), strict=True) if p is not None}
        for row, others in by_row.items()
    }


def pair_p(
    rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn], site: Site
) -> dict[tuple[int, int], float]:
    """The p, not adjusted, of the test that ranks: of every two rows, by place, that answered the same documents."""
    p_values: dict[tuple[int, int], float] = {}
    for key, strata in _same_documents(rows, board, columns, site).items():
        # Kept with the site: a rebuild without a change needs no statistics.
        values = [*strata.values()]
        facts = site.part(f"p of pairs {board.title} {key}", values, partial(_all_p, values))
        p_values |= {(a, b): facts["p"][i][j] for i, a in enumerate(strata) for j, b in enumerate(strata) if i != j}
    return p_values


def _same_documents(
    rows: Sequence[BoardRow], board: Board, columns: Sequence[TaskColumn], site: Site
) -> dict[tuple[tuple[float, str], ...], dict[int, list[Stratum]]]:
    """Rows, by place, that answered the same documents, with the values by which they are ranked."""
    groups: dict[tuple[tuple[float, str], ...], dict[int, list[Stratum]]] = defaultdict(dict)
    for at, row in enumerate(rows):
        cells = [cell for cell in _ranked_cells(row, board, columns) if cell is not None]
        values = [document_values(site, cell.entry, cell.score) for cell in cells]
        if all(values):
            strata = [replace(stratum, weight=stratum.weight / len(cells)) for own in values for stratum in own]
            groups[tuple((round(stratum.weight, 9), stratum.documents) for stratum in strata)][at] = strata
    return {key: strata for key, strata in groups.items() if len(strata) > 1}


def _all_p(rows: Sequence[Sequence[Stratum]]) -> dict[str, list[list[float]]]:
    strata = [[row[at].values for row in rows] for at in range(len(rows[0]))]
    return {"p": all_pairs(strata, [stratum.weight for stratum in rows[0]])}


def _sign(row: BoardRow) -> int:
    lower = any(cell is not None and cell.score.higher_is_better is False for cell in row.cells)
    return -1 if lower else 1


def _above(other: BoardRow, row: BoardRow, p: float | None) -> bool:
    """Is ``other`` better than ``row``: by the p of their paired test, without one beyond both intervals?"""
    assert other.mean is not None and row.mean is not None
    if p is not None:
        return p <= LEVEL and _sign(row) * (other.mean - row.mean) > 0
    lo, hi = _bounds(other)
    own_lo, own_hi = _bounds(row)
    return lo > own_hi if _sign(row) > 0 else hi < own_lo


def _bounds(row: BoardRow) -> tuple[float, float]:
    made = row.mean_interval
    assert made is not None and made.lo is not None and made.hi is not None  # else it is not comparable
    return made.lo, made.hi
