"""The page of comparisons: the best rows of each board with each other, every trained checkpoint with its base, and a
script that compares any two to five rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from dare_bench.analysis.intervals import Interval, mean_of
from dare_bench.analysis.paired_tests import holm
from dare_bench.leaderboards import pair_differences
from dare_bench.leaderboards.board_ranking import pair_p
from dare_bench.leaderboards.board_rows import BoardRow
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.pair_differences import (
    PLACE,
    CheckpointChange,
    Delta,
    changes_of,
    judged,
    p_of_bounds,
)
from dare_bench.leaderboards.rendering import Link
from dare_bench.leaderboards.site import Site

TOP = 8
"""Maximum number of rows of a board that are compared with each other, in 28 pairs."""


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """The gain of a row over a column, or the ``reason`` why there is none. ``adjusted`` is its p after Holm's
    adjustment over all pairs of the matrix."""

    gain: Delta | None
    reason: str = ""
    adjusted: float | None = None


@dataclass(frozen=True, slots=True)
class ComparisonMatrix:
    """A board's best rows compared with each other. ``heads``: name, settings and page of each; ``pairs``: the
    differences of two rows (first minus second) in all tasks that the board ranks by, or why there are none. ``p``: the
    p of the test that ranks two rows, where they have the same documents."""

    title: str
    ranked_by: str
    heads: list[tuple[str, str, str]]
    pairs: dict[tuple[int, int], list[Delta] | str]
    p: dict[tuple[int, int], float]

    @property
    def unpaired(self) -> int:
        """The number of pairs whose documents could not be paired."""
        return sum(not all(d.paired for d in deltas) for deltas in self.pairs.values() if not isinstance(deltas, str))

    def cells(self) -> list[list[MatrixCell | None]]:
        """The cells by row, None on the diagonal."""
        gains = {
            key: deltas if isinstance(deltas, str) else _gain(deltas, self.p.get(key))
            for key, deltas in self.pairs.items()
        }
        adjusted = holm([None if isinstance(gain, str) else gain.p for gain in gains.values()])
        cells: dict[tuple[int, int], MatrixCell] = {}
        for ((i, j), gain), p in zip(gains.items(), adjusted, strict=True):
            if isinstance(gain, str):
                cells[i, j] = cells[j, i] = MatrixCell(None, gain)
            else:
                cells[i, j], cells[j, i] = MatrixCell(gain, "", p), MatrixCell(gain.reversed(), "", p)
        numbers = range(len(self.heads))
        return [[cells.get((i, j)) for j in numbers] for i in numbers]


def link(context: Context) -> Link | None:
    """In the navigation if there are runs to compare."""
    return Link(PLACE, "Compare") if len(context.entries) > 1 else None


def write(site: Site, context: Context) -> None:
    """Write the page. A script compares the rows that its address names; without it the page has the best rows."""
    place = {id(entry): at for at, entry in enumerate(context.entries)}
    matrices = [matrix for view in context.views if (matrix := _matrix(site, view, place)) is not None]
    steps, refused = changes_of(site, context)
    site.part("compare", (matrices, steps, refused), partial(_write, site, matrices, steps, refused))


def _write(
    site: Site, matrices: list[ComparisonMatrix], steps: list[CheckpointChange], refused: list[tuple[str, str]]
) -> None:
    # p is adjusted only when the page is written: a rebuild without a change needs no statistics.
    cells = [(matrix, matrix.cells()) for matrix in matrices]
    site.page(PLACE, "comparison_index.html.j2", matrices=cells, steps=judged(steps), refused=refused)


def _best(view: BoardView) -> list[BoardRow]:
    """The first ranked rows; on a board without ranks rows with all scores whose only badge is that they are limited,
    best first."""
    if ranked := [row for row in view.rows if row.rank is not None]:
        return [each for row in ranked for each in row.each][:TOP]
    rows = [
        row for row in view.rows if row.mean is not None and {badge.kind for badge in row.unranked_by} == {"limited"}
    ]
    return sorted(rows, key=lambda row: row.mean or 0.0, reverse=True)[:TOP]


def _matrix(site: Site, view: BoardView, place: dict[int, int]) -> ComparisonMatrix | None:
    rows = _best(view)
    if len(rows) < 2:
        return None
    ranked = view.board.ranked(view.columns)
    deltas = {}
    for i, first in enumerate(rows):
        for j in range(i + 1, len(rows)):
            cells = [(first.cells[at], rows[j].cells[at]) for at in ranked]
            deltas[i, j] = _deltas(site, cells, place)
    heads = [(row.name.text, row.settings, row.main.page) for row in rows]
    p = pair_p(site, view.board.title, rows, ranked) if len(ranked) > 1 else {}  # one task: each pair's test
    return ComparisonMatrix(view.board.title, view.ranked_by, heads, deltas, p)


def _deltas(
    site: Site, cells: Sequence[tuple[RunScore | None, RunScore | None]], place: dict[int, int]
) -> list[Delta] | str:
    """First minus second row in each task that a board ranks by."""
    deltas = []
    for first, second in cells:
        assert first is not None and second is not None  # ranked rows have all of them
        first_is_older = place[id(first.entry)] < place[id(second.entry)]  # a pair has one page, the older run first
        older, newer = (first, second) if first_is_older else (second, first)
        delta = pair_differences.difference(site, older.entry, newer.entry, first.score.task, first.score.key)
        if isinstance(delta, str):
            return f"{first.score.task}: {delta}"
        deltas.append(delta.reversed() if first_is_older else delta)
    return deltas


def _gain(deltas: list[Delta], ranking_p: float | None) -> Delta:
    """The gain in what rows are ranked by: one task, or the mean of tasks."""
    first = deltas[0]
    if len(deltas) == 1:
        return first.gain
    value, mean = mean_of([Interval(d.method, d.level, d.lo, d.hi, d.n) for d in deltas], [d.value for d in deltas])
    lo, hi = (mean.lo, mean.hi) if mean else (None, None)
    p = p_of_bounds(value, lo, hi) if ranking_p is None else ranking_p
    return replace(
        first,
        value=value,
        lo=lo,
        hi=hi,
        p=p,
        share=all(delta.share for delta in deltas),
        paired=all(delta.paired for delta in deltas),
    ).gain
