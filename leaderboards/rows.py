"""The rows of a board: which runs share one, and what stands in its cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.leaderboards.board import TaskColumn, column_names
from dare_bench.leaderboards.entries import BoardEntry, settings_line
from dare_bench.leaderboards.names import Name
from dare_bench.runs.scores import Score
from dare_bench.stats import Interval


@dataclass(frozen=True, slots=True)
class Badge:
    """Why a row is not to be read like the others; any badge keeps it out of the ranking."""

    kind: str
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class BoardCell:
    """One number of a board and the run that it comes from."""

    score: Score
    entry: BoardEntry

    @property
    def shots(self) -> str:
        return self.entry.shots(self.score.task)


@dataclass(slots=True)
class BoardRow:
    """One checkpoint under one set of settings: a run, or several with other tasks each.

    ``cells`` follow the board's columns, None where no run has such a score. ``mean`` is what the row is ranked by.
    """

    entries: list[BoardEntry]
    cells: list[BoardCell | None]
    badges: list[Badge] = field(default_factory=list)
    mean: float | None = None
    mean_interval: Interval | None = None
    rank: int | None = None
    last: int | None = None
    """The last rank that it may have: ``rank`` to ``last`` is its band."""
    shared: bool = False

    @property
    def main(self) -> BoardEntry:
        """The run that gives the row its name: the newest."""
        return max(self.entries, key=lambda entry: entry.created)

    @property
    def model(self) -> str:
        return self.main.model

    @property
    def name(self) -> Name:
        return self.main.name

    @property
    def created(self) -> str:
        return self.main.created

    @property
    def family(self) -> str:
        return self.main.family

    @property
    def slug(self) -> str:
        return self.main.slug

    @property
    def settings(self) -> str:
        """How the answers were made, in short."""
        return settings_line(self.entries)

    @property
    def hardware(self) -> str:
        return self.main.hardware

    @property
    def suite(self) -> str | None:
        return self.main.suite

    def _sum(self, name: str) -> float:
        return sum(getattr(entry.cost, name) or 0 for entry in self.entries)

    @property
    def nfe_per_request(self) -> float | None:
        """Forward passes per request, over all its runs."""
        requests = self._sum("requests")
        return self._sum("nfe") / requests if requests else None

    @property
    def tpf(self) -> float | None:
        """Tokens to the first EOS per forward pass, over the runs that generate; None where none does."""
        own = [entry.cost for entry in self.entries if entry.cost.tpf]
        passes = sum(cost.tokens_to_eos / cost.tpf for cost in own if cost.tpf)
        return sum(cost.tokens_to_eos for cost in own) / passes if passes else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens to the first EOS per second of generating, over the runs that generate."""
        own = [entry.cost for entry in self.entries if entry.cost.tokens_per_s]
        seconds = sum(cost.tokens_to_eos / cost.tokens_per_s for cost in own if cost.tokens_per_s)
        return sum(cost.tokens_to_eos for cost in own) / seconds if seconds else None


def together(entries: Sequence[BoardEntry], apart: bool) -> list[list[BoardEntry]]:
    """Which runs share a row: those of one checkpoint on one machine that were asked with the same settings (or by one
    suite, or by recipes, where settings are the task's) and have no task in common."""
    rows: list[list[BoardEntry]] = []
    for entry in sorted(entries, key=_precedence):
        for row in () if apart or entry.status == "running" else rows:
            if _may_join(entry, row):
                row.append(entry)
                break
        else:
            rows.append([entry])
    return rows


def _precedence(entry: BoardEntry) -> tuple[Any, ...]:
    """Complete and new ones first: where two have a task, the better one is on the row that others may join. Parts of
    a suite find each other before a run of the same settings joins one of them."""
    return not entry.complete, entry.limit is not None, entry.row.alone, tuple(-ord(char) for char in entry.created)


def _may_join(entry: BoardEntry, row: Sequence[BoardEntry]) -> bool:
    if any(other.status == "running" or set(entry.tasks) & set(other.tasks) for other in row):
        return False
    return all(entry.row.joins(other.row) for other in row)


def cells_of(entries: Sequence[BoardEntry], columns: Sequence[TaskColumn]) -> list[BoardCell | None]:
    return [next(_found(entries, column), None) for column in columns]


def _found(entries: Sequence[BoardEntry], column: TaskColumn) -> Iterator[BoardCell]:
    for entry in entries:
        score = entry.headline(column.task) if column.metric is None else entry.score(column.task, column.metric)
        if score is not None:
            yield BoardCell(score, entry)


def row_record(row: BoardRow, columns: Sequence[TaskColumn]) -> dict[str, Any]:
    """A row as it stands in ``data/board.json``."""
    made = row.mean_interval
    return {
        "run_id": row.main.run_id,
        "runs": [entry.run_id for entry in row.entries],
        "page": row.main.page,
        "model": row.model,
        "name": row.name.text,
        "family": row.family,
        "created": row.created,
        "status": row.main.status,
        "rank": row.rank,
        "rank_shared": row.shared,
        "rank_band": None if row.rank is None else [row.rank, row.last],
        "badges": [badge.kind for badge in row.badges],
        "mean": row.mean,
        "mean_interval": None if made is None else {"method": made.method, "lo": made.lo, "hi": made.hi},
        "scores": {
            name: None if cell is None else {**score_record(cell.score), "shots": cell.shots, "page": cell.entry.page}
            for name, cell in zip(column_names(columns), row.cells, strict=True)
        },
        "settings": {name: value for entry in reversed(row.entries) for name, value in entry.asked.items()},
        "settings_text": row.settings,
        "hardware": row.hardware,
        "nfe_per_request": row.nfe_per_request,
        "tpf": row.tpf,
        "tokens_per_s": row.tokens_per_s,
        "cost": row.main.cost.model_dump(),
    }


def score_record(score: Score) -> dict[str, Any]:
    """A score as it stands in the site's JSON files."""
    return {name: getattr(score, name) for name in Score.__dataclass_fields__}
