"""The parts that all charts share: the figure with its caption, legend and notes, the axes of the drawing, and the
marks of families. Each has a shape and a color, so that neither alone has to distinguish them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from markupsafe import Markup, escape

from dare_bench.leaderboards.charts.axes import AxisScale, px, tick_labels
from dare_bench.runs.text import one_line, visible

CLASSES = 24
"""``f0`` to ``f23`` in charts.css: eight shapes, three times, each time in other colors."""
RADIUS = 5.0
SMALL = 0.72
"""The size of the marks of unranked points, as a share of the others'."""


def _regular(corners: int, radius: float, turn: float = 0.0, inner: float | None = None) -> list[tuple[float, float]]:
    """A regular polygon with a corner at the top (turned by ``turn``); with ``inner`` a star."""
    radii = [radius] if inner is None else [radius, inner]
    count = corners * len(radii)
    angles = [2 * math.pi * at / count - math.pi / 2 + turn for at in range(count)]
    return [(radii[at % len(radii)] * math.cos(a), radii[at % len(radii)] * math.sin(a)) for at, a in enumerate(angles)]


_PLUS = [(-1.7, -5.2), (1.7, -5.2), (1.7, -1.7), (5.2, -1.7), (5.2, 1.7), (1.7, 1.7)]
_PLUS = [*_PLUS, *((-x, -y) for x, y in _PLUS)]
_CROSS = [((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in _PLUS]
# In the order of use: a board with few families has the shapes that differ most.
_SHAPES: tuple[list[tuple[float, float]], ...] = (
    [],  # a circle
    _regular(4, 5.7, math.pi / 4),
    _regular(3, 6.2),
    _regular(4, 6.0),
    _PLUS,
    _regular(3, 6.2, math.pi),
    _regular(5, 6.6, inner=2.9),
    _CROSS,
)


@cache
def shape(number: int, scale: float = 1.0) -> str:
    """The SVG path of a shape around the current point, in relative commands."""
    corners = _SHAPES[number % len(_SHAPES)]
    if not corners:
        r, d = px(4.7 * scale), px(9.4 * scale)
        return f"m-{r} 0a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0z"
    places = [(round(x * scale, 1), round(y * scale, 1)) for x, y in corners]
    moves = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(places)]
    return f"m{_pair(*places[0])}l{' '.join(_pair(*move) for move in moves)}z"


def _pair(x: float, y: float) -> str:
    across, down = px(x), px(y)
    return across + ("" if down.startswith("-") else " ") + down


def classes(families: Iterable[str]) -> dict[str, int]:
    """The number of each family's class and shape, independent of the order of the points. Beyond eight families the
    shapes repeat in other colors (hollow shapes already mean "approximate")."""
    return {name: at % CLASSES for at, name in enumerate(sorted(set(families)))}


WIDTH, HEIGHT = 600, 392
LEFT, TOP, RIGHT, BOTTOM = 46, 34, 584, 326
"""The bounds of the plot inside the drawing, in its units; the labels are outside."""
BETTER = {"left": "← better", "right": "better →", "up": "↑ better", "down": "↓ better"}


@dataclass(slots=True)
class Frame:
    """A chart under construction. ``ident`` is an id that is unique on the page; ``parts`` is the drawing's SVG.

    ``better_x`` and ``better_y`` are the good side of an axis, empty for none.
    """

    ident: str
    title: str
    x: AxisScale
    y: AxisScale
    x_title: str
    y_title: str
    percent: bool
    better_x: str = ""
    better_y: str = ""
    links: int = 0
    classes: str = ""
    parts: list[str] = field(default_factory=list)
    legend: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def figure(self) -> Markup:
        """The whole figure as HTML."""
        ident = escape(self.ident)
        drawing = (
            f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-labelledby="{ident}-title">'
            f"{self._axes()}{''.join(self.parts)}</svg>"
        )
        return Markup(
            f'<figure class="chart{self.classes}" id="{ident}">'
            f'<figcaption id="{ident}-title">{escape(one_line(self.title, 120))}</figcaption>'
            f'<a class="skip" href="#{ident}-end">Skip the marks of this chart: {self.links}</a>{drawing}'
            f"{_legend(self.legend)}{_notes(self.notes)}"
            f'<span id="{ident}-end" tabindex="-1"></span></figure>'
        )

    def _axes(self) -> str:
        """Grid, ticks and titles. Hidden from screen readers: the marks' names and the tables carry the numbers."""
        lines = "".join(f"M{LEFT} {px(self.y(tick))}H{RIGHT}" for tick in self.y.ticks)
        notches = "".join(f"M{px(self.x(tick))} {BOTTOM}v5" for tick in self.x.ticks)
        parts = [
            f'<g class="axes" aria-hidden="true"><path class="grid" d="{lines}"/>',
            f'<path class="base" d="M{LEFT} {BOTTOM}H{RIGHT}{notches}"/>',
            f'<text x="0" y="14">{_axis_title(self.y_title, self.better_y, self.percent)}</text>',
            f'<text class="end" x="{RIGHT}" y="{HEIGHT - 8}">{_axis_title(self.x_title, self.better_x)}</text>',
            '<g class="end">',
        ]
        for tick, text in zip(self.y.ticks, tick_labels(self.y.ticks, percent=self.percent), strict=True):
            parts.append(f'<text x="{LEFT - 8}" y="{px(self.y(tick))}" dy=".34em">{text}</text>')
        parts.append('</g><g class="mid">')
        for tick, text in zip(self.x.ticks, tick_labels(self.x.ticks), strict=True):
            parts.append(f'<text x="{px(self.x(tick))}" y="{BOTTOM + 9}" dy=".8em">{text}</text>')
        return "".join(parts) + "</g></g>"


def _axis_title(title: str, better: str, percent: bool = False) -> str:
    name = f"<tspan>{escape(one_line(title, 50))}{', %' if percent else ''}</tspan>"
    if not better:
        return name
    way = f'<tspan class="way">{BETTER[better]}</tspan>'
    return "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE} ".join((way, name) if better == "left" else (name, way))


def empty(ident: str, title: str, why: str) -> Markup:
    """A figure without a drawing, which gives the reason."""
    figure = '<figure class="chart" id="{}"><figcaption>{}</figcaption><p class="chart-note">{}</p></figure>'
    return Markup(figure).format(ident, one_line(title, 120), why)


def key(name: str, number: int, count: int | None = None, control: bool = False) -> str:
    """A family's entry in the legend; ``number`` is that of its class. A ``control`` is gray."""
    number_of = "" if count is None else f" <small>{count}</small>"
    return (
        f'<li class="family f{number}{" control" * control}"><svg class="key" viewBox="-8 -8 16 16" aria-hidden="true">'
        f'<path class="m" d="M0 0{shape(number)}"/></svg>{escape(one_line(name, 100))}{number_of}</li>'
    )


def sign(kind: str, path: str, text: str) -> str:
    """The meaning of a line or mark, as an entry of the legend."""
    return (
        f'<li><svg class="key" viewBox="-8 -8 16 16" aria-hidden="true"><path class="{kind}" d="{path}"/></svg>'
        f"{escape(text)}</li>"
    )


def name_of(lines: Iterable[str]) -> str:
    """The ``<title>`` of a link, which browsers show on hover and read out: each line has at most 72 characters before
    invisible characters are replaced by visible ones."""
    short = [text if len(text) <= 72 else f"{text[:60]}…{text[-11:]}" for text in (" ".join(x.split()) for x in lines)]
    return f"<title>{escape(visible(chr(10).join(filter(None, short))))}</title>"


def _legend(entries: Sequence[str]) -> str:
    return f'<ul class="chart-legend">{"".join(entries)}</ul>' if entries else ""


def _notes(notes: Sequence[str]) -> str:
    return f'<p class="chart-note">{escape(" ".join(notes))}</p>' if notes else ""
