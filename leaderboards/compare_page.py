"""Comparisons on the site: the best rows of each board with each other, every trained checkpoint with what it was made
from; and a comparison as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dare_bench.analysis.comparison import RunComparison
from dare_bench.analysis.intervals import Interval, mean_of
from dare_bench.analysis.names import letter
from dare_bench.analysis.paired_tests import holm
from dare_bench.leaderboards import comparing, pair_page
from dare_bench.leaderboards.checkpoint_changes import LEVEL, CheckpointChange, any_change, changes_of, judged
from dare_bench.leaderboards.context import BoardView, Context
from dare_bench.leaderboards.pages import HERE, Link, render
from dare_bench.leaderboards.pair_page import Delta
from dare_bench.leaderboards.ranking import pair_p
from dare_bench.leaderboards.rows import BoardCell, BoardRow
from dare_bench.leaderboards.site import Site
from dare_bench.runs.writer import atomic_write_bytes, atomic_write_text

PLACE = "compare/index.html"
TOP = 8
"""Ranked rows of a board that are compared with each other: 28 pairs, whatever the number of runs."""
ASSETS = ("theme.js", "site.css", "site.js", "charts.css", "compare.css")


@dataclass(frozen=True, slots=True)
class Gain:
    """One cell of a matrix: how much better the row is than the column, or ``why`` nobody can tell. ``p`` is of this
    pair alone, ``adjusted`` over all pairs of the matrix; ``kind`` is better, worse or none: what that shows."""

    value: float | None
    lo: float | None = None
    hi: float | None = None
    p: float | None = None
    adjusted: float | None = None
    share: bool = True
    page: str = ""
    why: str = ""
    kind: str = "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    """A board's best rows with each other. ``heads``: name, settings and page of each; ``pairs``: for two of them the
    differences (first minus second) in all tasks that the board ranks by, or why there are none; ``p``: of two rows
    the p of the test that ranks them, where they answered the same documents."""

    title: str
    what: str
    heads: list[tuple[str, str, str]]
    pairs: dict[tuple[int, int], list[Delta] | str]
    p: dict[tuple[int, int], float]

    def cells(self) -> list[list[Gain | None]]:
        """The cells by row, None on the diagonal."""
        upper = {key: _gain(deltas, self.p.get(key)) for key, deltas in self.pairs.items()}
        adjusted = holm([gain.p for gain in upper.values()])
        upper = {key: _judged(gain, p) for (key, gain), p in zip(upper.items(), adjusted, strict=True)}
        numbers = range(len(self.heads))
        return [[None if i == j else upper.get((i, j)) or _turned(upper[j, i]) for j in numbers] for i in numbers]


def link(context: Context) -> Link | None:
    """In the navigation where any two runs are to be compared and their samples may be read."""
    if not context.samples:
        return None
    some = any(len(_best(view)) > 1 for view in context.views)
    return Link(PLACE, "Compare") if some or any_change(context) else None


def write(site: Site, context: Context) -> None:
    """The index; the pages of pairs are made as their numbers are asked for."""
    place = {id(entry): at for at, entry in enumerate(context.entries)}
    matrices = [made for view in context.views if (made := _matrix(site, view, place)) is not None]
    steps, refused = changes_of(site, context)
    site.part("compare", (matrices, steps, refused), partial(_write, site, matrices, steps, refused))


def _write(site: Site, matrices: list[Matrix], steps: list[CheckpointChange], refused: list[tuple[str, str]]) -> None:
    # p is adjusted here, where it is written: a rebuild without a change needs no statistics.
    told = {**comparing.FORMATS, "letter": letter}
    cells = [(matrix, matrix.cells()) for matrix in matrices]
    site.page(PLACE, "compares.html.j2", matrices=cells, steps=judged(steps), refused=refused, **told)


def write_standalone(comparison: RunComparison, path: str | Path) -> Path:
    """Write a comparison as a page that needs nothing but the folder ``<name>_files`` beside it.

    Raises:
        SaveError: the page or one of its files could not be written.
    """
    path = Path(path)
    folder = path.with_name(f"{path.stem}_files")
    for name in ASSETS:
        atomic_write_bytes(folder / "static" / name, (HERE / "static" / name).read_bytes(), durable=False)
    values = comparing.values(comparison)
    page = render("compare.html.j2", f"{folder.name}/", place=path.name, navigation=(), alone=True, **values)
    atomic_write_text(path, page, durable=False)
    return path


def _best(view: BoardView) -> list[BoardRow]:
    ranked = [row for row in view.rows if row.rank is not None]
    return (ranked or _limited(view))[:TOP]


def _limited(view: BoardView) -> list[BoardRow]:
    """Where no row is ranked: those with every score of which nothing is said but that they are limited, best first."""
    rows = [row for row in view.rows if row.mean is not None and {badge.kind for badge in row.badges} == {"limited"}]
    return sorted(rows, key=lambda row: row.mean or 0.0, reverse=True)


def _matrix(site: Site, view: BoardView, place: dict[int, int]) -> Matrix | None:
    rows = _best(view)
    if len(rows) < 2:
        return None
    chosen = [at for at, column in enumerate(view.columns) if view.board.rank_by in ("mean", column.task)]
    if view.board.rank_by != "mean":
        chosen = chosen[:1]
    what = view.columns[chosen[0]].name if len(chosen) == 1 else f"the mean of {len(chosen)} tasks"
    pairs = {}
    for i, first in enumerate(rows):
        for j in range(i + 1, len(rows)):
            cells = [(first.cells[at], rows[j].cells[at]) for at in chosen]
            pairs[i, j] = _deltas(site, cells, place)
    heads = [(row.name.text, row.settings, row.main.page) for row in rows]
    p = pair_p(rows, view.board, view.columns, site) if len(chosen) > 1 else {}  # one task: each pair's own test
    return Matrix(view.board.title, what, heads, pairs, p)


def _deltas(
    site: Site, cells: Sequence[tuple[BoardCell | None, BoardCell | None]], place: dict[int, int]
) -> list[Delta] | str:
    """First minus second row in each task that a board ranks by."""
    deltas = []
    for first, second in cells:
        assert first is not None and second is not None  # ranked rows have all of them
        turn = place[id(first.entry)] < place[id(second.entry)]  # a pair has one page, the older run first
        older, newer = (first, second) if turn else (second, first)
        delta = pair_page.difference(site, older.entry, newer.entry, first.score.task, first.score.key)
        if isinstance(delta, str):
            return f"{first.score.task}: {delta}"
        deltas.append(replace(delta, **_negated(delta)) if turn else delta)
    return deltas


def _gain(deltas: list[Delta] | str, ranking_p: float | None) -> Gain:
    """The difference of two rows' ranked scores: one task's own, or that of the means."""
    if isinstance(deltas, str):
        return Gain(None, why=deltas)
    first = deltas[0]
    value, lo, hi, p = first.value, first.lo, first.hi, first.p
    if len(deltas) > 1:
        value, mean = mean_of([Interval(d.method, d.level, d.lo, d.hi, d.n) for d in deltas], [d.value for d in deltas])
        lo, hi = (mean.lo, mean.hi) if mean else (None, None)
        p = _p_of(value, lo, hi) if ranking_p is None else ranking_p
    gain = Gain(value, lo, hi, p, None, all(delta.share for delta in deltas), first.page)
    return gain if first.higher_is_better else replace(gain, **_negated(gain))


def _negated(difference: Delta | Gain) -> dict[str, Any]:
    """Value and interval of the same difference seen from the other side."""
    lo, hi, value = difference.lo, difference.hi, difference.value or 0.0
    return {"value": -value, "lo": None if hi is None else -hi, "hi": None if lo is None else -lo}


def _p_of(value: float, lo: float | None, hi: float | None) -> float | None:
    """The two-sided p of a mean difference from its interval (Altman and Bland, BMJ 343, 2011, d2304), by the side that
    faces zero."""
    if lo is None or hi is None:
        return None
    from scipy.stats import norm

    half = value - lo if value > 0 else hi - value
    if half <= 0:
        return 1.0 if value == 0 else None
    return float(2 * norm.sf(abs(value) / half * norm.ppf(0.5 + LEVEL / 2)))


def _judged(cell: Gain, adjusted: float | None) -> Gain:
    shown = adjusted is not None and adjusted <= 1 - LEVEL and bool(cell.value)
    kind = "none" if not shown else "better" if (cell.value or 0) > 0 else "worse"
    return replace(cell, adjusted=adjusted, kind=kind)


def _turned(cell: Gain) -> Gain:
    """The same cell seen from the other row."""
    if cell.value is None:
        return cell
    kind = {"better": "worse", "worse": "better"}.get(cell.kind, "none")
    return replace(cell, **_negated(cell), kind=kind)
