"""The rows of a board: which runs share a row, and what is in its cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.analysis.intervals import Interval
from dare_bench.leaderboards.board import TaskColumn
from dare_bench.leaderboards.entries import BoardEntry, settings_line
from dare_bench.leaderboards.names import Name
from dare_bench.runs.scores import Score


@dataclass(frozen=True, slots=True)
class Badge:
    """Why a row is not comparable with the others; a row with any badge is not ranked."""

    kind: str
    text: str
    why: str


@dataclass(frozen=True, slots=True)
class BoardCell:
    """One score of a board and the run that it comes from."""

    score: Score
    entry: BoardEntry

    @property
    def shots(self) -> str:
        return self.entry.shots(self.score.task)


@dataclass(slots=True)
class BoardRow:
    """One checkpoint under one set of settings: a run, or several runs of different tasks.

    ``cells`` follow the board's columns, None where no run has such a score. ``mean`` is what the row is ranked by.
    ``rank`` to ``last`` is its band: the ranks that it may have.
    """

    entries: list[BoardEntry]
    cells: list[BoardCell | None]
    badges: list[Badge] = field(default_factory=list)
    mean: float | None = None
    mean_interval: Interval | None = None
    rank: int | None = None
    last: int | None = None
    shared: bool = False

    @property
    def main(self) -> BoardEntry:
        """The newest run, which names the row."""
        return max(self.entries, key=lambda entry: entry.created)

    @property
    def name(self) -> Name:
        return self.main.name

    @property
    def created(self) -> str:
        return self.main.created

    @property
    def settings(self) -> str:
        """How the answers were generated, in short."""
        return settings_line(self.entries)

    @property
    def nfe_per_request(self) -> float | None:
        """Forward passes per request, over all its runs."""
        requests = sum(entry.cost.requests or 0 for entry in self.entries)
        return sum(entry.cost.nfe or 0 for entry in self.entries) / requests if requests else None

    @property
    def tpf(self) -> float | None:
        """Tokens to the first EOS per forward pass, over the runs that generate; None where none does."""
        return self._tokens_per("tpf")

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens to the first EOS per second of generating, over the runs that generate; None where none does."""
        return self._tokens_per("tokens_per_s")

    def _tokens_per(self, rate: str) -> float | None:
        """All tokens over all passes or seconds, which are tokens / rate of each run."""
        runs = [(entry.cost.tokens_to_eos, getattr(entry.cost, rate)) for entry in self.entries]
        total = sum(tokens / own for tokens, own in runs if own)
        return sum(tokens for tokens, own in runs if own) / total if total else None


def together(entries: Sequence[BoardEntry], apart: bool) -> list[list[BoardEntry]]:
    """Group runs into rows: runs of one checkpoint on one machine with the same settings (or of one suite, or of
    recipes, whose tasks have settings of their own) and with no task in common. ``apart``: each run has its own row."""
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
    """Complete and new runs first: where two have a task, the better one is on the row that others may join. Parts of
    a suite are grouped before a run of the same settings joins one of them."""
    return not entry.complete, entry.limit is not None, entry.row.alone, tuple(-ord(char) for char in entry.created)


def _may_join(entry: BoardEntry, row: Sequence[BoardEntry]) -> bool:
    if any(other.status == "running" or set(entry.tasks) & set(other.tasks) for other in row):
        return False
    return all(entry.row.joins(other.row) for other in row)


def cells_of(entries: Sequence[BoardEntry], columns: Sequence[TaskColumn]) -> list[BoardCell | None]:
    """For each column the score of the first run that has one."""
    return [
        next((BoardCell(score, entry) for entry in entries if (score := _score(entry, column)) is not None), None)
        for column in columns
    ]


def _score(entry: BoardEntry, column: TaskColumn) -> Score | None:
    return entry.headline(column.task) if column.metric is None else entry.score(column.task, column.metric)
