"""Score against training step or forwards: a line for each training recipe, beside the score of the checkpoint that it
started from."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup, escape

from dare_bench.formatting import compact, with_interval
from dare_bench.leaderboards.charts import frame
from dare_bench.leaderboards.charts.axes import linear, px
from dare_bench.leaderboards.charts.frame import BOTTOM, LEFT, RIGHT, TOP, Frame, classes, shape
from dare_bench.leaderboards.charts.labels import HEIGHT, distinct, spread, width
from dare_bench.runs.text import one_line

_BANDS = 4
"""Maximum number of lines with intervals as bands; more bands would overlap, so more lines get whiskers."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A checkpoint's score ``y`` (interval ``lo`` to ``hi``) after ``x`` training steps; ``href`` is its run's page.

    In the mark's name ``place`` says what x is (default: ``step x``), and ``detail`` has a separate line. Points of
    several seeds belong together by their ``step`` (default: x).
    """

    x: float
    y: float
    href: str
    lo: float | None = None
    hi: float | None = None
    settings: str = ""
    place: str = ""
    detail: str = ""
    step: float | None = None


@dataclass(frozen=True, slots=True)
class Series:
    """The checkpoints of one training, or those of all seeds of one recipe (``seeds`` is their number): then the line
    goes through their means, and the band from the lowest to the highest. ``label`` stands at the line's end (default:
    the name); series of one ``group`` share a color and an entry of the legend (default: the name). A ``control`` is
    dashed and gray."""

    name: str
    steps: Sequence[CurvePoint]
    group: str = ""
    label: str = ""
    seeds: int = 1
    control: bool = False


@dataclass(frozen=True, slots=True)
class Base:
    """The score of the checkpoint that training started from."""

    name: str
    y: float
    href: str
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, slots=True)
class _Line:
    """A series that is drawn: its finite points by step, those that its line joins, and the number of its class."""

    series: Series
    points: list[CurvePoint]
    joined: list[CurvePoint]
    number: int
    label: str


def training_curves(
    series: Sequence[Series],
    *,
    ident: str,
    title: str,
    y_title: str,
    x_title: str = "training step",
    base: Base | None = None,
    higher_is_better: bool = True,
    percent: bool = True,
) -> Markup:
    """The figure of all ``series`` that have a finite point. ``ident`` is an id that is unique on the page;
    ``percent``: scores are shares from 0 to 1, shown in percent."""
    groups = classes(_group(own) for own in series if _finite(own))
    finite = [(own, points) for own in series if (points := _finite(own))]
    labels = distinct([own.label or own.name for own, _ in finite], [own.name for own, _ in finite], 22)
    drawn = [
        _Line(own, points, _means(points) if own.seeds > 1 else points, groups[_group(own)], label)
        for (own, points), label in zip(finite, labels, strict=True)
    ]
    if not drawn:
        return frame.empty(ident, title, "No checkpoint has a score yet.")
    points = [point for line in drawn for point in line.points]
    # A single series is named by the title and the legend.
    margin = min(max(width(line.label) for line in drawn), 150) + 12 if len(drawn) > 1 else 8
    x = linear([0.0, *(point.x for point in points)], LEFT + 8, RIGHT - margin)
    ends = [value for point in points for value in (point.y, point.lo, point.hi) if value is not None]
    y = linear([*ends, *([base.y] if base else [])], BOTTOM, TOP, percent)
    chart = Frame(ident, title, x, y, x_title, y_title, percent, "", "up" if higher_is_better else "down")
    chart.links, chart.classes = len(points) + (base is not None), " lines"
    if base:
        chart.parts.append(_base(base, chart))
    chart.parts += [_curve(line, chart, len(drawn) <= _BANDS) for line in drawn]
    if len(drawn) > 1:
        chart.parts.append(_labels(drawn, chart))
    chart.legend = _legend(groups, {_group(line.series) for line in drawn if line.series.control}, base)
    if any(line.series.seeds > 1 for line in drawn):
        chart.notes.append("A line is the mean of its recipe's seeds, its band from the lowest to the highest of them.")
    missing = sum(len(own.steps) for own in series) - len(points)
    if missing:
        chart.notes.append(f"{missing} without a finite score {'is' if missing == 1 else 'are'} not drawn.")
    return chart.figure()


def _group(series: Series) -> str:
    return series.group or series.name


def _finite(series: Series) -> list[CurvePoint]:
    points = [point for point in series.steps if math.isfinite(point.x) and math.isfinite(point.y)]
    return sorted(points, key=lambda point: point.x)


def _means(points: Sequence[CurvePoint]) -> list[CurvePoint]:
    """The mean of the seeds at each step, with the lowest and the highest as bounds."""
    by_step: dict[float, list[CurvePoint]] = defaultdict(list)
    for point in points:
        by_step[point.x if point.step is None else point.step].append(point)
    return [
        CurvePoint(fmean(p.x for p in own), fmean(p.y for p in own), "", min(p.y for p in own), max(p.y for p in own))
        for _, own in sorted(by_step.items())
    ]


def _base(base: Base, chart: Frame) -> str:
    path = f"M{LEFT} {px(chart.y(base.y))}H{px(chart.x.end)}"
    name = (base.name, f"{with_interval(base.y, base.lo, base.hi, chart.percent)} · before training")
    return (
        f'<a class="start" href="{escape(base.href)}">{frame.name_of(name)}'
        f'<path class="hit" d="{path}"/><path class="dash" d="{path}"/></a>'
    )


def _curve(line: _Line, chart: Frame, bands: bool) -> str:
    x, y, joined, several = chart.x, chart.y, line.joined, line.series.seeds > 1
    parts = [f'<g class="series f{line.number}{" control" * line.series.control}">']
    bounded = len(joined) > 1 and all(point.lo is not None and point.hi is not None for point in joined)
    as_band = bounded and (bands or several)
    if as_band:
        over = [f"{px(x(point.x))} {px(y(point.hi or 0.0))}" for point in joined]
        under = [f"{px(x(point.x))} {px(y(point.lo or 0.0))}" for point in reversed(joined)]
        parts.append(f'<path class="band" d="M{"L".join(over + under)}z"/>')
    if len(joined) > 1:
        parts.append(f'<path class="line" d="M{"L".join(f"{px(x(p.x))} {px(y(p.y))}" for p in joined)}"/>')
    parts += [_mark(point, line, chart, whisker=not (as_band or several)) for point in line.points]
    return "".join(parts) + "</g>"


def _mark(point: CurvePoint, line: _Line, chart: Frame, whisker: bool) -> str:
    x, y = px(chart.x(point.x)), px(chart.y(point.y))
    interval = ""
    if whisker and point.lo is not None and point.hi is not None:
        interval = f'<path d="M{x} {px(chart.y(point.lo))}V{px(chart.y(point.hi))}"/>'
    value = with_interval(point.y, point.lo, point.hi, chart.percent)
    place = point.place or f"step {compact(point.x, 6)}"
    name = (line.series.name, f"{value} · {place}", point.detail, point.settings)
    size = 0.55 if line.series.seeds > 1 else 0.8
    return (
        f'<a href="{escape(point.href)}">{frame.name_of(name)}{interval}'
        f'<path d="M{x} {y}{shape(line.number, size)}"/></a>'
    )


def _labels(drawn: Sequence[_Line], chart: Frame) -> str:
    heights = spread([chart.y(line.joined[-1].y) for line in drawn], HEIGHT, TOP, BOTTOM)
    labels = [
        f'<text class="f{line.number}{" control" * line.series.control}"'
        f' x="{px(chart.x(line.joined[-1].x) + 10)}" y="{px(height)}" dy=".34em">{escape(line.label)}</text>'
        for line, height in zip(drawn, heights, strict=True)
        if height is not None
    ]
    return f'<g class="names" aria-hidden="true">{"".join(labels)}</g>'


def _legend(groups: Mapping[str, int], controls: Collection[str], base: Base | None) -> list[str]:
    legend = [frame.key(name, number, control=name in controls) for name, number in groups.items()]
    if base:
        legend.append(frame.sign("dash", "M-8 0H8", f"before training: {one_line(base.name, 40)}"))
    return legend
