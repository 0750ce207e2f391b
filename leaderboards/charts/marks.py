"""The marks of families: each has a shape and a color, so that neither alone has to distinguish them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache
from itertools import pairwise

from dare_bench.leaderboards.charts.axes import px

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
