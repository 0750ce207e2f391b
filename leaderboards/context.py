"""What the pages of a site are made from: the runs, and the boards over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dare_bench.leaderboards.board import Board, Column
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.rows import Row


@dataclass(frozen=True, slots=True)
class View:
    """One board of the site: its declaration, columns and rows, and where its page stands."""

    name: str
    board: Board
    columns: Sequence[Column]
    rows: Sequence[Row]
    place: str
    data: str
    """Its JSON, from the site's folder; a CSV stands beside it."""


@dataclass(slots=True)
class Context:
    """All of a site. ``problem`` is told, in one line, what had to be left out; ``samples`` says whether sample pages
    (and all else that reads sample files) are wanted."""

    entries: Sequence[Entry]
    problem: Callable[[str], None]
    samples: bool = True
    views: list[View] = field(default_factory=list)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    """First sample pages by run (slug), then task; from the site's folder."""
