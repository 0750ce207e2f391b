"""Which rows of a board may be compared, and their order: badges, the mean, the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dare_bench.leaderboards.board import Board, Column
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.rows import Badge, Cell, Row, cells_of, together
from dare_bench.runs.scores import is_share
from dare_bench.runs.standing import Asked, Difference, difference, present
from dare_bench.stats import Interval, mean_of


def settled(board: Board, columns: Sequence[Column], entries: Sequence[Entry]) -> Board:
    """``rank_by: auto`` settled: by the mean where half the rows have all tasks, else by the task that most have."""
    if board.rank_by != "auto":
        return board
    rows = [cells_of(own, columns) for own in together(entries, board.rows == "run")]
    scored = [cells for cells in rows if any(cells)]
    whole = sum(all(cells) for cells in scored)
    counts = [sum(cells[at] is not None for cells in scored) for at in range(len(columns))]
    usual = columns[counts.index(max(counts))].task if columns else "mean"
    return board.model_copy(update={"rank_by": "mean" if 2 * whole >= len(scored) else usual})


def make_rows(board: Board, columns: Sequence[Column], entries: Sequence[Entry]) -> list[Row]:
    """The rows of a board, best first, then those without rank, newest first."""
    rows = [Row(own, cells_of(own, columns)) for own in together(entries, board.rows == "run")]
    rows = [row for row in rows if board.tasks == "all" or any(row.cells) or row.main.status == "running"]
    current = _now(rows, len(columns))
    for row in rows:
        row.badges = _badges(row, columns, current, board.rank_by)
        _add_mean(row, board, columns)
    _rank(rows, _comparable(rows, board, columns))
    newest_first = sorted(rows, key=lambda row: row.created, reverse=True)
    # "Ties" share a rank by their intervals; within a rank the better point estimate stands first.
    return sorted(newest_first, key=lambda row: (row.rank is None, row.rank or 0, -_sign(row) * (row.mean or 0.0)))


def _asked(cell: Cell) -> Asked:
    entry = cell.entry
    return Asked(cell.score, entry.created, entry.complete, entry.around[cell.score.task])


def _now(rows: Sequence[Row], columns: int) -> list[Asked | None]:
    """For each column the question as it is asked now."""
    return [present(_asked(cell) for row in rows if (cell := row.cells[at]) is not None) for at in range(columns)]


def _differing(row: Row, columns: Sequence[Column], current: Sequence[Asked | None]) -> dict[Difference, list[str]]:
    """Columns whose task has another definition than now, and those where only the prompts asked are others."""
    found: dict[Difference, list[str]] = {"definition": [], "prompts": []}
    for column, cell, now in zip(columns, row.cells, current, strict=True):
        if cell is not None and (kind := difference(_asked(cell), now)) is not None:
            found[kind].append(column.name)
    return found


def _badges(row: Row, columns: Sequence[Column], current: Sequence[Asked | None], rank_by: str) -> list[Badge]:
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
    differing = _differing(row, columns, current)
    if stale := differing["definition"]:
        why = f"Templates, filters or scorer differ from those of the newest complete run: {', '.join(stale)}."
        badges.append(Badge("stale", "other task version", why))
    if prompts := differing["prompts"]:
        why = f"Examples, chat template or data differ from those of most complete runs: {', '.join(prompts)}."
        badges.append(Badge("prompts", "other prompts", why))
    missing = [
        column.name
        for column, cell in zip(columns, row.cells, strict=True)
        if cell is None and rank_by in ("mean", "none", column.task)
    ]
    if missing and "running" not in statuses:
        badges.append(Badge("missing", f"{len(missing)} of {len(columns)} tasks missing", ", ".join(missing)))
    return badges


def _add_mean(row: Row, board: Board, columns: Sequence[Column]) -> None:
    """What the row is ranked by: one task's score, or the mean over all."""
    if board.rank_by == "mean":
        chosen = row.cells
    else:
        chosen = [cell for column, cell in zip(columns, row.cells, strict=True) if column.task == board.rank_by][:1]
    scores = [cell.score for cell in chosen if cell is not None]
    if not scores or len(scores) < len(chosen):
        return
    intervals = [Interval(s.method, s.level or 0.95, s.lo, s.hi, s.n) for s in scores]
    if len(scores) == 1:
        row.mean, row.mean_interval = scores[0].value, intervals[0]
    else:
        row.mean, row.mean_interval = mean_of(intervals, [score.value for score in scores])


def _comparable(rows: Sequence[Row], board: Board, columns: Sequence[Column]) -> list[Row]:
    """The rows that may be ranked; none where a mean would mix scores of different directions or scales."""
    if _unranked_board(rows, board, columns):
        return []
    return [row for row in rows if not row.badges and row.mean is not None]


def _unranked_board(rows: Sequence[Row], board: Board, columns: Sequence[Column]) -> str:
    """Why this board ranks nothing, whatever its rows are; empty if it does rank."""
    scores = [cell.score for row in rows for cell in row.cells if cell is not None]
    if board.rank_by == "none":
        return "this board is declared without a ranking."
    if not columns:
        return "no run has a score yet."
    if board.rank_by == "mean" and len(columns) > 1 and not all(is_share(s) and s.higher_is_better for s in scores):
        return "its tasks have scores of different scales or directions, of which a mean says nothing."
    return ""


def why_unranked(rows: Sequence[Row], board: Board, columns: Sequence[Column]) -> str:
    """The reason, as the end of a sentence, where no row has a rank; empty where one has."""
    if any(row.rank is not None for row in rows):
        return ""
    return _unranked_board(rows, board, columns) or "the badges say why."


def _rank(rows: Sequence[Row], comparable: Sequence[Row]) -> None:
    """Rank = 1 + the number of rows whose interval lies wholly above this one's; its band ends before the rows whose
    interval lies wholly below. Two rows that cannot be told apart always have bands with a rank in common."""
    for row in comparable:
        row.rank = 1 + sum(_above(other, row) for other in comparable)
        row.last = len(comparable) - sum(_above(row, other) for other in comparable)
    ranks = Counter(row.rank for row in rows)
    for row in comparable:
        row.shared = ranks[row.rank] > 1


def _sign(row: Row) -> int:
    lower = any(cell is not None and cell.score.higher_is_better is False for cell in row.cells)
    return -1 if lower else 1


def _above(other: Row, row: Row) -> bool:
    """Is ``other`` better beyond its and ``row``'s interval? Without an interval the value alone counts."""
    if other is row or other.mean is None or row.mean is None:
        return False
    lo, hi = _bounds(other)
    own_lo, own_hi = _bounds(row)
    return lo > own_hi if _sign(row) > 0 else hi < own_lo


def _bounds(row: Row) -> tuple[float, float]:
    made = row.mean_interval
    mean = row.mean or 0.0
    if made is None or made.lo is None or made.hi is None:
        return mean, mean
    return made.lo, made.hi
