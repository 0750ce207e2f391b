"""Score against training step: a line for each trained run, beside the score of what it started from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from dare_bench.leaderboards.charts import frame
from dare_bench.leaderboards.charts.axes import AxisScale, compact, linear, px
from dare_bench.leaderboards.charts.frame import BOTTOM, LEFT, RIGHT, TOP, Frame
from dare_bench.leaderboards.charts.labels import HEIGHT, shorten, spread, width
from dare_bench.leaderboards.charts.marks import classes, shape
from dare_bench.runs.text import one_line

_BANDS = 4
"""Up to so many lines have their intervals as bands; more would lie on each other and get whiskers."""


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A checkpoint's score ``y`` (interval ``lo`` to ``hi``) after ``x`` training steps; ``href`` is its run's page."""

    x: float
    y: float
    href: str
    lo: float | None = None
    hi: float | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """The checkpoints of one training. ``label`` stands at the line's end (default: the name); series of one ``group``
    (seeds of one recipe, say) share a color and an entry of the legend (default: the name)."""

    name: str
    steps: Sequence[CurvePoint]
    group: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Base:
    """The score of the checkpoint that training started from."""

    name: str
    y: float
    href: str
    lo: float | None = None
    hi: float | None = None


def lines(
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
    """The figure of all ``series`` that have a finite point. ``ident`` is an id that the page has once; ``percent``:
    scores are shares from 0 to 1, shown in percent."""
    kept = [(one, _finite(one.steps)) for one in series]
    shown = [(one, steps) for one, steps in kept if steps]
    if not shown:
        return frame.empty(ident, title, "No checkpoint has a score yet.")
    every = [step for _, steps in shown for step in steps]
    known = classes(_group(one) for one, _ in shown)
    names = [shorten(one.label or one.name, 22) for one, _ in shown]
    # A lone series is named by the title and the legend.
    margin = min(max(map(width, names)), 150) + 12 if len(shown) > 1 else 8
    x = linear([0.0, *(step.x for step in every)], LEFT + 8, RIGHT - margin)
    ends = [value for step in every for value in (step.y, step.lo, step.hi) if value is not None]
    ends += [base.y] if base else []
    y = linear(ends, BOTTOM, TOP, floor=0.0 if percent else -math.inf, ceiling=1.0 if percent else math.inf)
    chart = Frame(ident, title, x, y, x_title, y_title, percent, "", "up" if higher_is_better else "down")
    chart.links, chart.classes = len(every) + (base is not None), " lines"
    if base:
        chart.parts.append(_base(base, x, y, percent))
    bands = len(shown) <= _BANDS
    for one, steps in shown:
        chart.parts.append(_series(one, steps, known[_group(one)], x, y, percent, bands))
    if len(shown) > 1:
        chart.parts.append(_ends(shown, names, known, x, y))
    chart.legend = _legend(shown, known, base)
    missing = sum(len(one.steps) for one in series) - len(every)
    if missing:
        chart.notes.append(f"{missing} without a finite score {'is' if missing == 1 else 'are'} not drawn.")
    return chart.figure()


def _group(one: Series) -> str:
    return one.group or one.name


def _finite(steps: Sequence[CurvePoint]) -> list[CurvePoint]:
    return sorted((s for s in steps if math.isfinite(s.x) and math.isfinite(s.y)), key=lambda step: step.x)


def _base(base: Base, x: AxisScale, y: AxisScale, percent: bool) -> str:
    down = px(y(base.y))
    said = (base.name, f"{frame.with_interval(base.y, base.lo, base.hi, percent)} · before training")
    return (
        f'<a class="start" href="{escape(base.href)}">{frame.name_of(said)}'
        f'<path class="hit" d="M{LEFT} {down}H{px(x.end)}"/><path class="dash" d="M{LEFT} {down}H{px(x.end)}"/></a>'
    )


def _series(
    one: Series, steps: Sequence[CurvePoint], number: int, x: AxisScale, y: AxisScale, percent: bool, bands: bool
) -> str:
    made = [f'<g class="series f{number}">']
    bounded = [step for step in steps if step.lo is not None and step.hi is not None]
    as_band = bands and len(bounded) == len(steps) > 1
    if as_band:
        over = [f"{px(x(step.x))} {px(y(step.hi or 0.0))}" for step in bounded]
        under = [f"{px(x(step.x))} {px(y(step.lo or 0.0))}" for step in reversed(bounded)]
        made.append(f'<path class="band" d="M{"L".join(over + under)}z"/>')
    if len(steps) > 1:
        made.append(f'<path class="line" d="M{"L".join(f"{px(x(s.x))} {px(y(s.y))}" for s in steps)}"/>')
    for step in steps:
        whisker = ""
        if step.lo is not None and step.hi is not None and not as_band:
            whisker = f'<path d="M{px(x(step.x))} {px(y(step.lo))}V{px(y(step.hi))}"/>'
        value = frame.with_interval(step.y, step.lo, step.hi, percent)
        said = (one.name, f"{value} · step {compact(step.x, 6)}", step.settings)
        made.append(
            f'<a href="{escape(step.href)}">{frame.name_of(said)}{whisker}'
            f'<path d="M{px(x(step.x))} {px(y(step.y))}{shape(number, 0.8)}"/></a>'
        )
    return "".join(made) + "</g>"


def _ends(
    shown: Sequence[tuple[Series, list[CurvePoint]]],
    names: Sequence[str],
    known: Mapping[str, int],
    x: AxisScale,
    y: AxisScale,
) -> str:
    """The lines' names at their ends, where they find room."""
    heights = spread([y(steps[-1].y) for _, steps in shown], HEIGHT, TOP, BOTTOM)
    made = []
    for (one, steps), name, height in zip(shown, names, heights, strict=True):
        if height is not None:
            made.append(
                f'<text class="f{known[_group(one)]}" x="{px(x(steps[-1].x) + 10)}" y="{px(height)}"'
                f' dy=".34em">{escape(name)}</text>'
            )
    return f'<g class="names" aria-hidden="true">{"".join(made)}</g>'


def _legend(shown: Sequence[tuple[Series, list[CurvePoint]]], known: Mapping[str, int], base: Base | None) -> list[str]:
    made = [frame.key(name, number) for name, number in known.items()]
    if base:
        made.append(frame.sign("dash", "M-8 0H8", f"before training: {one_line(base.name, 40)}"))
    return made
