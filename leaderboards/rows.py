"""From runs to the rows of a board: cells, badges, what each cost, and the ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.leaderboards.board import Board, Column
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score
from dare_bench.runs.text import one_line
from dare_bench.stats import Interval, mean_of

_OTHER_SCALES = ("bits_per_byte", "bleu", "chrf", "ter")


@dataclass(frozen=True, slots=True)
class Badge:
    """Why a row is not to be read like the others; any badge keeps it out of the ranking."""

    kind: str
    text: str
    why: str


@dataclass(slots=True)
class Row:
    """One run on a board; ``cells`` follow the board's columns, None where the run has no such score."""

    run: Run
    slug: str
    cells: list[Score | None]
    badges: list[Badge] = field(default_factory=list)
    mean: float | None = None
    mean_interval: Interval | None = None
    rank: int | None = None
    shared: bool = False

    @property
    def settings(self) -> str:
        """The family, and what was asked for beyond its defaults, in short."""
        block = self.run.block
        asked = block.decoding_requested if block else {}
        text = one_line(", ".join(f"{name} {value}" for name, value in asked.items()), 90) or "default settings"
        return f"{block.model.family}, {text}" if block else text

    @property
    def training(self) -> str:
        """What a trained checkpoint was made of, the last training first; empty where the run knows of none."""
        found = self.run.block.model.lineage if self.run.block else None
        if not found:
            return ""
        parents = [one for one in found.get("parents") or () if isinstance(one, dict)]
        return ", after ".join(_training(one) for one in (found, *reversed(parents)))

    @property
    def hardware(self) -> str:
        environment = self.run.block.environment if self.run.block else None
        return (environment.gpu or environment.cpu or "") if environment else ""

    @property
    def nfe_per_request(self) -> float | None:
        cost = self.run.block.cost if self.run.block else None
        return cost.nfe / cost.requests if cost and cost.requests else None


def _training(made: Mapping[str, Any]) -> str:
    how = f"{made.get('method')} ({made['peft']})" if made.get("peft") else made.get("method")
    at = f"step {made.get('step')} of {made.get('steps')}, seed {made.get('seed')}"
    return f"{made.get('base')}: {how} on {made.get('data')}, {at}"


def make_rows(board: Board, columns: Sequence[Column], runs: Sequence[tuple[Run, str]]) -> list[Row]:
    """The rows of a board, best first, then those without rank, newest first. ``runs`` pairs each run with its slug."""
    rows = [Row(run, slug, [_cell(run, column) for column in columns]) for run, slug in runs]
    current = _current_fingerprints(rows, len(columns))
    for row in rows:
        row.badges = _badges(row, columns, current)
        _add_mean(row, board, columns)
    _rank(rows, _comparable(rows, board, columns))
    newest_first = sorted(rows, key=lambda row: row.run.created, reverse=True)
    # "Ties" share a rank by their intervals; within a rank the better point estimate stands first.
    return sorted(newest_first, key=lambda row: (row.rank is None, row.rank or 0, -_sign(row) * (row.mean or 0.0)))


def _cell(run: Run, column: Column) -> Score | None:
    if column.metric is None:
        return run.headline(column.task)
    return next((s for s in run.scores() if s.task == column.task and s.key == column.metric), None)


def _current_fingerprints(rows: Sequence[Row], columns: int) -> list[str | None]:
    """For each column the task fingerprint of the newest complete run: prompts and scorer as they are now."""
    newest = sorted((row for row in rows if _is_complete(row)), key=lambda row: row.run.created)
    found: list[str | None] = [None] * columns
    for row in newest:
        for at, cell in enumerate(row.cells):
            # A limited run has fewer prompts, hence another fingerprint, without the task having changed.
            if cell is not None and not cell.limited:
                found[at] = cell.task_fingerprint
    return found


def _is_complete(row: Row) -> bool:
    return row.run.status == "complete" and not (row.run.block and row.run.block.failures)


def _differing(row: Row, columns: Sequence[Column], current: Sequence[str | None]) -> tuple[list[str], list[str]]:
    """(columns whose task has another definition than now, columns where only the prompts asked are others)."""
    definitions, prompts = [], []
    for column, cell, now in zip(columns, row.cells, current, strict=True):
        if cell is None or now is None:
            continue
        if cell.task_fingerprint.partition(":")[0] != now.partition(":")[0]:
            definitions.append(column.name)
        elif cell.task_fingerprint != now and not cell.limited:  # limited: fewer prompts, and a badge that says so
            prompts.append(column.name)
    return definitions, prompts


def _badges(row: Row, columns: Sequence[Column], current: Sequence[str | None]) -> list[Badge]:
    badges: list[Badge] = []
    block = row.run.block
    failures = len(block.failures) if block else 0
    if row.run.status == "running":
        badges.append(Badge("running", "not finished", "The run has not been finished; the same command resumes it."))
    elif row.run.status == "incomplete" or failures:
        why = f"{failures} samples failed and are left out of the scores."
        badges.append(Badge("incomplete", f"incomplete: {failures} failed", why))
    if any(cell is not None and cell.limited for cell in row.cells):
        limit = block.limit if block else None
        text = f"limit {limit:g}" if limit is not None else "some documents"
        badges.append(Badge("limited", text, "Only part of each task's documents was evaluated."))
    stale, prompts = _differing(row, columns, current)
    if stale:
        why = f"Templates, filters or scorer differ from those of the newest complete run: {', '.join(stale)}."
        badges.append(Badge("stale", "other task version", why))
    if prompts:
        why = f"Examples, chat template or data differ from those of the newest complete run: {', '.join(prompts)}."
        badges.append(Badge("prompts", "other prompts", why))
    missing = [column.name for column, cell in zip(columns, row.cells, strict=True) if cell is None]
    if missing and row.run.status != "running":
        badges.append(Badge("missing", f"{len(missing)} of {len(columns)} tasks missing", ", ".join(missing)))
    return badges


def _add_mean(row: Row, board: Board, columns: Sequence[Column]) -> None:
    """What the row is ranked by: one task's score, or the mean over all."""
    if board.rank_by == "mean":
        chosen = row.cells
    else:
        chosen = [cell for column, cell in zip(columns, row.cells, strict=True) if column.task == board.rank_by][:1]
    scores = [cell for cell in chosen if cell is not None]
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
    cells = [cell for row in rows for cell in row.cells if cell is not None]
    if board.rank_by == "none":
        return "this board is declared without a ranking."
    if not columns:
        return "no run has a score yet."
    if board.rank_by == "mean" and len(columns) > 1 and not all(is_share(c) and c.higher_is_better for c in cells):
        return "its tasks have scores of different scales or directions, of which a mean says nothing."
    return ""


def why_unranked(rows: Sequence[Row], board: Board, columns: Sequence[Column]) -> str:
    """The reason, as the end of a sentence, where no row has a rank; empty where one has."""
    if any(row.rank is not None for row in rows):
        return ""
    return _unranked_board(rows, board, columns) or "the badges say why."


def _rank(rows: Sequence[Row], comparable: Sequence[Row]) -> None:
    """Rank = 1 + the number of rows whose interval lies wholly above this one's. Rows that cannot be told apart from
    the best of their band share its rank."""
    for row in comparable:
        row.rank = 1 + sum(_above(other, row) for other in comparable)
    ranks = Counter(row.rank for row in rows)
    for row in comparable:
        row.shared = ranks[row.rank] > 1


def _sign(row: Row) -> int:
    lower = any(cell is not None and cell.higher_is_better is False for cell in row.cells)
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


def is_share(score: Score) -> bool:
    """Is it a share between 0 and 1, to be printed in percent? Perplexities and BLEU are not, whatever their value."""
    other = score.metric in _OTHER_SCALES or "perplexity" in score.metric or "loss" in score.metric
    return 0.0 <= score.value <= 1.0 and not other


def row_record(row: Row, columns: Sequence[Column]) -> dict[str, Any]:
    """A row as it stands in ``data/board.json``."""
    block = row.run.block
    made = row.mean_interval
    return {
        "run_id": row.run.run_id,
        "page": f"runs/{row.slug}/index.html",
        "model": row.run.model,
        "created": row.run.created,
        "status": row.run.status,
        "rank": row.rank,
        "rank_shared": row.shared,
        "badges": [badge.kind for badge in row.badges],
        "mean": row.mean,
        "mean_interval": None if made is None else {"method": made.method, "lo": made.lo, "hi": made.hi},
        "scores": {
            column.name: None if cell is None else score_record(cell)
            for column, cell in zip(columns, row.cells, strict=True)
        },
        "settings": block.decoding_requested if block else {},
        "hardware": row.hardware,
        "cost": block.cost.model_dump() if block else {},
    }


def score_record(score: Score) -> dict[str, Any]:
    """A score as it stands in the site's JSON files."""
    return {name: getattr(score, name) for name in Score.__dataclass_fields__}
