"""Score against cost: every run a mark, and the front of those that no other run beats in both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup, escape

from dare_bench.leaderboards.charts import frame
from dare_bench.leaderboards.charts.axes import compact, linear, logarithmic, px
from dare_bench.leaderboards.charts.frame import BOTTOM, LEFT, RIGHT, TOP, Frame
from dare_bench.leaderboards.charts.labels import HEIGHT, LabelPlacer, shorten
from dare_bench.leaderboards.charts.marks import RADIUS, SMALL, classes, shape
from dare_bench.leaderboards.charts.pareto import Sideways, Upright, front

_DENSE = 40
"""From so many points on, intervals are drawn on the front only: others would hide each other, and are in the names."""
_MANY = 150
"""From so many points on, names go without the settings: the page's weight is words, and each mark leads to them."""
_LABELS = 10


@dataclass(frozen=True, slots=True)
class Point:
    """A run in a Pareto plot.

    ``x`` is its cost or speed, ``y`` its score with the interval ``lo`` to ``hi``; a point without both numbers, or
    with an x that is not above zero, is left out and counted. ``href`` leads to its page. ``approximate`` (exactness
    tier A) is drawn hollow. What is not ``ranked`` is drawn small and grey and is on no front; ``remark`` says why.
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


@dataclass(frozen=True, slots=True)
class _Mark:
    """A point and where it stands in the drawing, in its units from the top left; ``top`` and ``foot`` end its interval
    where that is drawn."""

    point: Point
    number: int
    x: float
    y: float
    top: float | None
    foot: float | None
    member: bool


def scatter(
    points: Sequence[Point],
    *,
    ident: str,
    title: str,
    x_title: str,
    y_title: str,
    x_unit: str = "",
    better: Sideways = "left",
    higher_is_better: bool = True,
    percent: bool = True,
) -> Markup:
    """A Pareto plot as a figure: drawing, legend by family, and note; who is on the front tells
    :func:`front_table`.

    ``ident`` is an id that the page has once. x is logarithmic; ``better`` says which side of it is the good one
    ("left" for forward passes, "right" for tokens per second) and ``x_unit`` is its short name in the marks' names
    (default: ``x_title``). ``percent``: scores are shares from 0 to 1, shown in percent. Links are as the points give
    them, from the page where the figure stands.
    """
    drawn = [point for point in points if _drawable(point)]
    if not drawn:
        return frame.empty(ident, title, "No run has both numbers yet.")
    upright: Upright = "up" if higher_is_better else "down"
    ranked = [point for point in drawn if point.ranked]
    members = front(ranked, better, upright)
    known = classes(point.family for point in drawn)
    chart = _frame(drawn, members, ident, title, x_title, y_title, better, upright, percent)
    marks = _marks(drawn, members, known, chart)
    steps = [mark for mark in marks if mark.member]
    corners = _stairs(steps, better, upright)
    shapes = {(mark.number % 8, mark.point.ranked) for mark in marks}
    chart.parts.append(_shapes(ident, sorted(shapes)))
    chart.parts.append(_reach(corners, upright))
    brief = len(marks) >= _MANY
    chart.parts.extend(_link(mark, ident, x_unit or x_title, percent, brief) for mark in marks)
    chart.parts.append(_names(steps, marks, corners, better, upright))
    chart.legend = _legend(drawn, known, bool(members))
    if len(drawn) < len(points):
        chart.notes.append(_left_out(len(points) - len(drawn)))
    return chart.figure()


def _drawable(point: Point) -> bool:
    x, y = point.x, point.y
    return x is not None and y is not None and math.isfinite(x) and math.isfinite(y) and x > 0


def _left_out(count: int) -> str:
    who = "1 run is" if count == 1 else f"{count} runs are"
    return f"{who} not drawn: no score, or nothing above zero on this axis."


def _bounds(point: Point, dense: bool, member: bool) -> tuple[float, float] | None:
    """The interval, where it is drawn."""
    if not point.ranked or point.lo is None or point.hi is None or (dense and not member):
        return None
    return point.lo, point.hi


def _frame(
    drawn: Sequence[Point],
    members: Sequence[Point],
    ident: str,
    title: str,
    x_title: str,
    y_title: str,
    better: Sideways,
    upright: Upright,
    percent: bool,
) -> Frame:
    """The chart without its marks: scales that hold all that will be drawn."""
    dense = len(drawn) >= _DENSE
    on_front = {id(point) for point in members}
    ends = [point.y or 0.0 for point in drawn]
    for point in drawn:
        ends.extend(_bounds(point, dense, id(point) in on_front) or ())
    x = logarithmic([point.x or 0.0 for point in drawn], LEFT + 8, RIGHT - 8)
    y = linear(ends, BOTTOM, TOP, floor=0.0 if percent else -math.inf, ceiling=1.0 if percent else math.inf)
    return Frame(ident, title, x, y, x_title, y_title, percent, better, upright, links=len(drawn))


def _marks(drawn: Sequence[Point], members: Sequence[Point], known: Mapping[str, int], chart: Frame) -> list[_Mark]:
    """In the order of drawing: unranked ones lie lowest, the front's members on top."""
    dense = len(drawn) >= _DENSE
    on_front = {id(point) for point in members}
    made = []
    for point in drawn:
        member = id(point) in on_front
        bounds = _bounds(point, dense, member)
        foot, top = (chart.y(bounds[0]), chart.y(bounds[1])) if bounds else (None, None)
        x, y = chart.x(point.x or 0.0), chart.y(point.y or 0.0)
        made.append(_Mark(point, known[point.family], x, y, top, foot, member))
    return sorted(made, key=lambda mark: (mark.point.ranked, mark.member, mark.x))


def _shapes(ident: str, wanted: Sequence[tuple[int, bool]]) -> str:
    """The shapes that the marks refer to, full-sized and small."""
    made = []
    for number, ranked in wanted:
        size, path = ("m", shape(number)) if ranked else ("s", shape(number, SMALL))
        made.append(f'<path id="{escape(ident)}-{size}{number}" d="M0 0{path}"/>')
    return f"<defs>{''.join(made)}</defs>"


def _link(mark: _Mark, ident: str, unit: str, percent: bool, brief: bool) -> str:
    """A mark, its interval and its name, as a link to the run's page."""
    point = mark.point
    said = (
        point.name,
        f"{frame.with_interval(point.y or 0.0, point.lo, point.hi, percent)} · {compact(point.x or 0.0)} {unit}",
        "" if brief else point.settings,
        point.remark or ("" if point.ranked else "not ranked"),
    )
    across = px(mark.x)
    whisker = "" if mark.foot is None else f'<path d="M{across} {px(mark.foot)}V{px(mark.top or 0.0)}"/>'
    kinds = f"f{mark.number}" + " front" * mark.member + " hollow" * point.approximate + " faint" * (not point.ranked)
    size = "m" if point.ranked else "s"
    return (
        f'<a class="{kinds}" href="{escape(point.href)}">{frame.name_of(said)}{whisker}'
        f'<use href="#{escape(ident)}-{size}{mark.number % 8}" x="{across}" y="{px(mark.y)}"/></a>'
    )


def _stairs(steps: Sequence[_Mark], better: Sideways, upright: Upright) -> list[tuple[float, float]]:
    """The corners of the front: from each member on, its score is to be had at its cost or a worse one."""
    if not steps:
        return []
    good_first = sorted(steps, key=lambda mark: (mark.x, mark.y), reverse=better == "right")
    corners = [(good_first[0].x, float(BOTTOM if upright == "up" else TOP))]
    for mark in good_first:
        corners += [(mark.x, corners[-1][1]), (mark.x, mark.y)]
    return [*corners, (RIGHT if better == "left" else LEFT, corners[-1][1])]


def _reach(corners: Sequence[tuple[float, float]], upright: Upright) -> str:
    """The front as a line, and the area that it dominates as a tint."""
    if not corners:
        return ""
    line = "M" + "L".join(f"{px(x)} {px(y)}" for x, y in corners)
    edge = BOTTOM if upright == "up" else TOP
    return f'<g aria-hidden="true"><path class="reach" d="{line}V{edge}z"/><path class="stairs" d="{line}"/></g>'


def _names(
    steps: Sequence[_Mark],
    marks: Sequence[_Mark],
    corners: Sequence[tuple[float, float]],
    better: Sideways,
    upright: Upright,
) -> str:
    """The front's names where there is room: on its far side first, where no mark can be."""
    room = LabelPlacer((LEFT + 2, TOP - HEIGHT - 4, RIGHT, BOTTOM - 2))
    room.taken = [(m.x - RADIUS, m.y - RADIUS, m.x + RADIUS, m.y + RADIUS) for m in marks]
    room.taken += [(m.x - 2, m.top or 0.0, m.x + 2, m.foot) for m in marks if m.foot is not None]
    for (ax, ay), (bx, by) in pairwise(corners):
        room.taken.append((min(ax, bx), min(ay, by), max(ax, bx) + 0.5, max(ay, by) + 0.5))
    out_x, out_y = (-1 if better == "left" else 1), (-1 if upright == "up" else 1)
    ways = ((out_x, 0), (out_x, out_y), (-out_x, out_y), (-out_x, -out_y), (0, out_y), (0, -out_y))
    made = []
    for mark in sorted(steps, key=lambda one: out_y * one.y, reverse=True)[:_LABELS]:  # best scores first
        text = shorten(mark.point.name)
        box = room.place(text, mark.x, mark.y, ways, RADIUS + 4)
        if box:
            left, right = box[2] < mark.x, box[0] > mark.x
            kind, at = ("end", box[2]) if left else ("start", box[0]) if right else ("mid", (box[0] + box[2]) / 2)
            height = px((box[1] + box[3]) / 2)
            made.append(f'<text class="{kind}" x="{px(at)}" y="{height}" dy=".34em">{escape(text)}</text>')
    return f'<g class="names" aria-hidden="true">{"".join(made)}</g>' if made else ""


def _legend(drawn: Sequence[Point], known: Mapping[str, int], has_front: bool) -> list[str]:
    counts = Counter(point.family for point in drawn)
    made = [frame.key(name or "other", number, counts[name]) for name, number in known.items()]
    if has_front:
        made.append(frame.sign("stairs", "M-8 5H-1V-4H8", "front: no run is better in both"))
    if any(point.approximate for point in drawn):
        made.append(frame.sign("hollow", f"M0 0{shape(0)}", "approximate (tier A)"))
    if any(not point.ranked for point in drawn):
        made.append(frame.sign("faint", f"M0 0{shape(0, SMALL)}", "not ranked"))
    return made
