"""A forest plot: differences with their intervals on one scale, with the line of no difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from dare_bench.leaderboards.charts.axes import AxisScale, linear, px, tick_labels
from dare_bench.leaderboards.charts.labels import shorten
from dare_bench.leaderboards.rendering import Tone
from dare_bench.runs.text import one_line

_WIDTH, _LEFT, _RIGHT = 600, 12, 588
_TOP, _ROW, _BELOW = 12, 46, 52
"""Height above the rows, of a row (its name and its line), and below them for the scale."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One difference; positive is better. ``tone`` is that of its verdict."""

    name: str
    value: float
    lo: float | None
    hi: float | None
    tone: Tone = "none"


def forest(effects: Sequence[Effect], *, ident: str, title: str) -> Markup:
    """The figure of differences of shares, in points; ``ident`` is an id that is unique on the page."""
    ends = [end for effect in effects for end in (effect.value, effect.lo, effect.hi) if end is not None]
    x = linear([0.0, *ends], _LEFT, _RIGHT)
    bottom = _TOP + _ROW * len(effects)
    zero = px(x(0.0))
    grid = "".join(f"M{px(x(tick))} {_TOP}V{bottom}" for tick in x.ticks)
    parts = [
        f'<g class="axes" aria-hidden="true"><path class="grid" d="{grid}"/>'
        f'<path class="base" d="M{_LEFT} {bottom}H{_RIGHT}"/>'
        f'<path class="zero" d="M{zero} {_TOP}V{bottom + 5}"/><g class="mid">'
    ]
    for tick, label in zip(x.ticks, tick_labels(x.ticks, percent=True), strict=True):
        sign = "+" if tick > 0 else ""
        parts.append(f'<text x="{px(x(tick))}" y="{bottom + 9}" dy=".8em">{sign}{label}</text>')
    words = ((_LEFT, "", "← worse"), (_WIDTH // 2, " mid", "points"), (_RIGHT, " end", "better →"))
    named = (f'<text class="name{kind}" x="{at}" y="{bottom + 44}">{escape(text)}</text>' for at, kind, text in words)
    parts.append(f"</g>{''.join(named)}</g>")
    parts += [_row(effect, _TOP + _ROW * at, x) for at, effect in enumerate(effects)]
    # For screen readers the figure is one image: the table beside it has the numbers.
    return Markup(
        '<figure class="chart forest"><figcaption id="{}">{}</figcaption>'
        '<svg viewBox="0 0 {} {}" role="img" aria-labelledby="{}">{}</svg></figure>'
    ).format(ident, one_line(title, 160), _WIDTH, bottom + _BELOW, ident, Markup("".join(parts)))


def _row(effect: Effect, top: float, x: AxisScale) -> str:
    """A difference's name and, below it, its interval and its mark."""
    down, whisker = px(top + 31), ""
    if effect.lo is not None and effect.hi is not None:
        lo, hi = px(x(effect.lo)), px(x(effect.hi))
        whisker = f'<path class="whisker" d="M{lo} {down}H{hi}M{lo} {px(top + 27)}v8M{hi} {px(top + 27)}v8"/>'
    name = f'<text x="{_LEFT + 7}" y="{px(top + 16)}">{escape(shorten(effect.name, 44))}</text>'
    dot = f'<circle class="dot" cx="{px(x(effect.value))}" cy="{down}" r="5"/>'
    return f'<g class="effect {effect.tone}">{name}{whisker}{dot}</g>'
