"""Score against cost: a mark for every run, and the Pareto frontier of those that no other run beats in both."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, Protocol, TypeVar

from markupsafe import Markup, escape

from dare_bench.formatting import compact, with_interval
from dare_bench.leaderboards.charts import frame
from dare_bench.leaderboards.charts.axes import linear, logarithmic, px
from dare_bench.leaderboards.charts.frame import BOTTOM, LEFT, RADIUS, RIGHT, SMALL, TOP, Frame, classes, shape
from dare_bench.leaderboards.charts.labels import HEIGHT, LabelPlacer, distinct

BetterX = Literal["left", "right"]
BetterY = Literal["up", "down"]


class HasXY(Protocol):
    """A point; without two finite coordinates it is never on the frontier."""

    @property
    def x(self) -> float | None: ...
    @property
    def y(self) -> float | None: ...


P = TypeVar("P", bound=HasXY)


def frontier(points: Sequence[P], better_x: BetterX = "left", better_y: BetterY = "up") -> list[P]:
    """The points that no other point dominates, from left to right. Equal points are on it together."""
    placed = sorted(_goodness(points, better_x, better_y), key=lambda own: (-own[0], -own[1]))
    members: list[P] = []
    best, best_x = -math.inf, math.nan
    for x, y, point in placed:  # best x first: a point is on the frontier if it is higher than all before it
        if y > best or (y == best and x == best_x):
            members.append(point)
            best, best_x = y, x
    return members if better_x == "left" else members[::-1]


def frontier_table(
    points: Sequence[P], better_x: BetterX = "left", better_y: BetterY = "up"
) -> list[tuple[P, list[P]]]:
    """The members of the frontier, best score first, each with the points that it dominates: it is at least as good in
    both coordinates and better in one."""
    placed = _goodness(points, better_x, better_y)
    members = {id(point) for point in frontier(points, better_x, better_y)}
    rows = [
        (y, point, [p for px, py, p in placed if px <= x and py <= y and (px < x or py < y)])
        for x, y, point in placed
        if id(point) in members
    ]
    return [(point, dominated) for _, point, dominated in sorted(rows, key=lambda row: -row[0])]


def _goodness(points: Sequence[P], better_x: BetterX, better_y: BetterY) -> list[tuple[float, float, P]]:
    """Both coordinates with a sign such that more is better."""
    sideways, upright = (-1 if better_x == "left" else 1), (1 if better_y == "up" else -1)
    return [
        (sideways * point.x, upright * point.y, point)
        for point in points
        if point.x is not None and point.y is not None and math.isfinite(point.x) and math.isfinite(point.y)
    ]


_DENSE = 40
"""Number of points from which intervals are drawn on the frontier only, since others would hide each other."""
_MANY = 150
"""Number of points from which the marks' names leave out the settings, which would make the page large."""
_LABELS = 10
_LINES = 12
"""Number of lines from which those without a member of the frontier are thin."""


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a Pareto plot.

    ``x`` is its cost or speed, ``y`` its score with the interval ``lo`` to ``hi``; a point without both numbers, or
    with an x that is not positive, is left out and counted. ``href`` links to its page;
    ``x_range``: the lowest and highest x of its replicates, if any. ``approximate`` (exactness
    tier A) is drawn hollow. A point that is not ``ranked`` is small, gray and not on the frontier; ``remark`` says why.
    """

    name: str
    x: float | None
    y: float | None
    href: str
    family: str = ""
    lo: float | None = None
    hi: float | None = None
    settings: str = ""
    approximate: bool = False
    ranked: bool = True
    remark: str = ""
    x_range: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """A point and its place in the drawing, in units from the top left; ``top`` and ``foot`` are the ends of its
    interval if that is drawn, ``left`` and ``right`` those of its replicates. ``member``: is it on the frontier?"""

    point: Point
    number: int
    member: bool
    x: float
    y: float
    top: float | None
    foot: float | None
    left: float | None
    right: float | None


def scatter(
    points: Sequence[Point],
    *,
    ident: str,
    title: str,
    x_title: str,
    y_title: str,
    x_unit: str = "",
    better: BetterX = "left",
    higher_is_better: bool = True,
    percent: bool = True,
    families: Mapping[str, int] | None = None,
    no_frontier: str = "",
    joined: bool = False,
) -> Markup:
    """A Pareto plot as a figure: drawing, legend by family, and note; :func:`frontier_table` lists the frontier.

    ``ident`` is an id that is unique on the page. The axis x is logarithmic; ``better`` is its good side ("left" for
    forward passes, "right" for tokens per second) and ``x_unit`` its short name in the marks' names (default:
    ``x_title``). ``percent``: scores are shares from 0 to 1, shown in percent. Links are relative to the page of the
    figure. ``families``: the class of each family on all charts of a site (:func:`marks.classes`; default: of those of
    this chart). ``no_frontier``: a sentence that says why no frontier is drawn, if none is. ``joined``: lines
    join the ranked points of one name, from left to right.
    """
    drawn = [point for point in points if _drawable(point)]
    if not drawn:
        return frame.empty(ident, title, "No run has both numbers yet.")
    if not any(point.ranked for point in drawn):  # gray marks are for the few beside ranked ones
        drawn = [replace(point, ranked=True, remark=point.remark or "not ranked") for point in drawn]
        no_frontier = no_frontier or "None of these runs is ranked, so no frontier is drawn."
    upright: BetterY = "up" if higher_is_better else "down"
    members = {
        id(point) for point in frontier([point for point in drawn if point.ranked and not no_frontier], better, upright)
    }
    families = families or classes(point.family for point in drawn)
    shown = [(point, _interval(point, len(drawn) < _DENSE or id(point) in members)) for point in drawn]
    ends = [end for point, interval in shown for end in (point.y or 0.0, *(interval or ()))]
    x = logarithmic([end for point in drawn for end in (point.x or 0.0, *(point.x_range or ()))], LEFT + 8, RIGHT - 8)
    y = linear(ends, BOTTOM, TOP, percent)
    chart = Frame(ident, title, x, y, x_title, y_title, percent, better, upright, links=len(drawn))
    marks = []
    for point, interval in shown:
        foot, top = map(y, interval) if interval else (None, None)
        number, member = families[point.family], id(point) in members
        left, right = map(x, point.x_range) if point.x_range else (None, None)
        marks.append(_Mark(point, number, member, x(point.x or 0.0), y(point.y or 0.0), top, foot, left, right))
    marks.sort(key=lambda mark: (mark.point.ranked, mark.member, mark.x))  # the frontier's members lie on top
    corners = _stairs([mark for mark in marks if mark.member], better, upright)
    chart.parts += [_shapes(ident, marks), _dominated_area(corners, upright)]
    lines = _lines(marks) if joined else []
    chart.parts += _joined(lines)
    brief = len(marks) >= _MANY
    chart.parts += [_link(mark, ident, x_unit or x_title, percent, brief) for mark in marks]
    chart.parts.append(_names(marks, corners, lines, better, upright))
    chart.legend = _legend(drawn, families, better if members else None)
    if len(drawn) < len(points):
        left_out = len(points) - len(drawn)
        runs = "1 run is" if left_out == 1 else f"{left_out} runs are"
        chart.notes.append(f"{runs} not drawn: no score, or no value above zero on this axis.")
    if no_frontier:
        chart.notes.append(no_frontier)
    return chart.figure()


def _drawable(point: Point) -> bool:
    x, y = point.x, point.y
    return x is not None and y is not None and math.isfinite(x) and math.isfinite(y) and x > 0


def _interval(point: Point, wanted: bool) -> tuple[float, float] | None:
    if not wanted or not point.ranked or point.lo is None or point.hi is None:
        return None
    return point.lo, point.hi


def _shapes(ident: str, marks: Iterable[_Mark]) -> str:
    paths = []
    for number, ranked in sorted({(mark.number % 8, mark.point.ranked) for mark in marks}):
        size, path = ("m", shape(number)) if ranked else ("s", shape(number, SMALL))
        paths.append(f'<path id="{escape(ident)}-{size}{number}" d="M0 0{path}"/>')
    return f"<defs>{''.join(paths)}</defs>"


def _link(mark: _Mark, ident: str, unit: str, percent: bool, brief: bool) -> str:
    point = mark.point
    name = (
        point.name,
        f"{with_interval(point.y or 0.0, point.lo, point.hi, percent)} · {_x_text(point)} {unit}",
        "" if brief else point.settings,
        point.remark or ("" if point.ranked else "not ranked"),
    )
    across = px(mark.x)
    whisker = "" if mark.foot is None else f'<path d="M{across} {px(mark.foot)}V{px(mark.top or 0.0)}"/>'
    if mark.left is not None and mark.right is not None:
        whisker += f'<path class="replicates" d="M{px(mark.left)} {px(mark.y)}H{px(mark.right)}"/>'
    kinds = f"f{mark.number}" + " front" * mark.member + " hollow" * point.approximate + " faint" * (not point.ranked)
    size = "m" if point.ranked else "s"
    return (
        f'<a class="{kinds}" href="{escape(point.href)}">{frame.name_of(name)}{whisker}'
        f'<use href="#{escape(ident)}-{size}{mark.number % 8}" x="{across}" y="{px(mark.y)}"/></a>'
    )


def _x_text(point: Point) -> str:
    text = compact(point.x or 0.0)
    return f"{text} ({'–'.join(map(compact, point.x_range))})" if point.x_range else text


def _stairs(members: Sequence[_Mark], better: BetterX, upright: BetterY) -> list[tuple[float, float]]:
    """The corners of the frontier: beyond each member its score is available at its cost or a worse cost."""
    if not members:
        return []
    good_first = sorted(members, key=lambda mark: (mark.x, mark.y), reverse=better == "right")
    corners = [(good_first[0].x, float(BOTTOM if upright == "up" else TOP))]
    for mark in good_first:
        corners += [(mark.x, corners[-1][1]), (mark.x, mark.y)]
    return [*corners, (RIGHT if better == "left" else LEFT, corners[-1][1])]


def _dominated_area(corners: Sequence[tuple[float, float]], upright: BetterY) -> str:
    if not corners:
        return ""
    line = "M" + "L".join(f"{px(x)} {px(y)}" for x, y in corners)
    edge = BOTTOM if upright == "up" else TOP
    return f'<g aria-hidden="true"><path class="reach" d="{line}V{edge}z"/><path class="stairs" d="{line}"/></g>'


def _lines(marks: Sequence[_Mark]) -> list[list[_Mark]]:
    """The ranked marks of each name that has several, from left to right."""
    by_name: dict[str, list[_Mark]] = defaultdict(list)
    for mark in sorted(marks, key=lambda mark: mark.x):
        if mark.point.ranked:
            by_name[mark.point.name].append(mark)
    return [own for own in by_name.values() if len(own) > 1]


def _joined(lines: Sequence[Sequence[_Mark]]) -> list[str]:
    """A line through the marks of each name."""
    thin = " thin" * (len(lines) > _LINES)
    return [
        f'<g class="series f{own[0].number}{thin * (not any(mark.member for mark in own))}" aria-hidden="true">'
        f'<path class="line" d="M{"L".join(f"{px(mark.x)} {px(mark.y)}" for mark in own)}"/></g>'
        for own in lines
    ]


def _names(
    marks: Sequence[_Mark],
    corners: Sequence[tuple[float, float]],
    lines: Sequence[Sequence[_Mark]],
    better: BetterX,
    upright: BetterY,
) -> str:
    """The names of the frontier's members where there is space: first on its far side, which has no marks."""
    placer = LabelPlacer((LEFT + 2, TOP - HEIGHT - 4, RIGHT, BOTTOM - 2))
    placer.taken = [(m.x - RADIUS, m.y - RADIUS, m.x + RADIUS, m.y + RADIUS) for m in marks]
    placer.taken += [(m.left, m.y - 2, m.right, m.y + 2) for m in marks if m.left is not None and m.right is not None]
    placer.taken += [(m.x - 2, m.top or 0.0, m.x + 2, m.foot) for m in marks if m.foot is not None]
    for (ax, ay), (bx, by) in pairwise(corners):
        placer.taken.append((min(ax, bx), min(ay, by), max(ax, bx) + 0.5, max(ay, by) + 0.5))
    for a, b in (pair for own in lines for pair in pairwise(own)):
        parts = math.ceil(max(b.x - a.x, abs(b.y - a.y)) / HEIGHT) + 1
        places = [(a.x + (b.x - a.x) * at / parts, a.y + (b.y - a.y) * at / parts) for at in range(parts + 1)]
        placer.taken += [(min(x, u), min(y, v), max(x, u), max(y, v)) for (x, y), (u, v) in pairwise(places)]
    out_x, out_y = (-1 if better == "left" else 1), (-1 if upright == "up" else 1)
    ways = ((out_x, 0), (out_x, out_y), (-out_x, out_y), (-out_x, -out_y), (0, out_y), (0, -out_y))
    members = sorted((mark for mark in marks if mark.member), key=lambda mark: out_y * mark.y, reverse=True)
    names, named = [], members[:_LABELS]  # best scores first
    labels = distinct([mark.point.name for mark in named], [mark.point.settings for mark in named])
    for mark, text in zip(named, labels, strict=True):
        box = placer.place(text, mark.x, mark.y, ways, RADIUS + 4)
        if box:
            left, right = box[2] < mark.x, box[0] > mark.x
            kind, at = ("end", box[2]) if left else ("start", box[0]) if right else ("mid", (box[0] + box[2]) / 2)
            height = px((box[1] + box[3]) / 2)
            names.append(f'<text class="{kind}" x="{px(at)}" y="{height}" dy=".34em">{escape(text)}</text>')
    return f'<g class="names" aria-hidden="true">{"".join(names)}</g>' if names else ""


_FRONTIER = {"left": "no other run is as good with fewer passes", "right": "no other run is as good and faster"}


def _legend(drawn: Sequence[Point], families: Mapping[str, int], frontier_of: BetterX | None) -> list[str]:
    counts = Counter(point.family for point in drawn)
    legend = [frame.key(name or "other", number, counts[name]) for name, number in families.items() if counts[name]]
    if frontier_of:
        legend.append(frame.sign("stairs", "M-8 5H-1V-4H8", f"Pareto frontier: {_FRONTIER[frontier_of]}"))
    if any(point.x_range for point in drawn):
        legend.append(frame.sign("replicates", "M-8 0H8", "slowest to fastest of replicates"))
    if any(point.approximate for point in drawn):
        legend.append(frame.sign("hollow", f"M0 0{shape(0)}", "approximate (tier A)"))
    if any(not point.ranked for point in drawn):
        legend.append(frame.sign("faint", f"M0 0{shape(0, SMALL)}", "not ranked"))
    return legend
