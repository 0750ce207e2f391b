"""What the pages of a site are made from: the runs, and the boards over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dare_bench.leaderboards.board import Board, TaskColumn
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.rows import BoardRow


@dataclass(frozen=True, slots=True)
class BoardView:
    """One board of the site: its declaration, columns and rows, and where its page stands."""

    name: str
    board: Board
    columns: Sequence[TaskColumn]
    rows: Sequence[BoardRow]
    place: str
    data: str
    """Its JSON, from the site's folder; a CSV stands beside it."""


@dataclass(slots=True)
class Context:
    """All of a site. ``problem`` is told, in one line, what had to be left out; ``samples`` says whether sample pages
    (and all else that reads sample files) are wanted."""

    entries: Sequence[BoardEntry]
    problem: Callable[[str], None]
    samples: bool = True
    views: list[BoardView] = field(default_factory=list)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    """First sample pages by run (slug), then task; from the site's folder."""
