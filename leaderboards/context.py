"""The data of a site's pages: runs, lineage, boards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dare_bench.leaderboards.board import Board, TaskColumn
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.charts.frame import classes
from dare_bench.leaderboards.checkpoint_trees import CheckpointNode, trees
from dare_bench.leaderboards.entries import BoardEntry


@dataclass(frozen=True, slots=True, eq=False)
class BoardView:
    """One board of the site: its declaration, columns and rows, and where its page stands. ``split``: of a board in
    which most cells are empty, the columns that have a page of their own, with its name and place."""

    name: str
    board: Board
    columns: Sequence[TaskColumn]
    rows: Sequence[BoardRow]
    place: str
    split: Sequence[tuple[TaskColumn, str, str]] = ()

    @property
    def of_mean(self) -> list[int]:
        """The numbers of the columns whose mean ranks, where the board ranks by the mean of several; else none."""
        ranked = self.board.ranked(self.columns)
        return ranked if len(ranked) > 1 else []

    @property
    def ranked_by(self) -> str:
        """What the board ranks by, in words: a task's name or "the mean of 3 tasks"; empty if by nothing."""
        ranked = self.board.ranked(self.columns)
        return f"the mean of {len(ranked)} tasks" if len(ranked) > 1 else self.columns[ranked[0]].name if ranked else ""


@dataclass
class Context:
    """All of a site.

    ``problem`` receives, in one line each, what had to be left out. ``samples``: write sample pages and comparisons,
    which read sample files. ``processes``: how many write the pages of runs. ``pages``: the table of all samples (from
    the site's folder) by run (slug), then task; ``answers``: how its documents are divided into pages, in the same way
    (see ``sample_pages.py``).
    """

    entries: Sequence[BoardEntry]
    problem: Callable[[str], None]
    samples: bool = True
    processes: int = 1
    views: list[BoardView] = field(default_factory=list)
    pages: dict[str, dict[str, str]] = field(default_factory=dict)
    answers: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)

    @cached_property
    def families(self) -> dict[str, int]:
        """The class of each family (its shape and color), on all charts of the site."""
        return classes(entry.family for entry in self.entries)

    @cached_property
    def lineage(self) -> list[CheckpointNode]:
        """The trees of trained checkpoints."""
        return trees(self.entries)
