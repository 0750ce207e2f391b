"""The Pareto front: the points than which no other is better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

Sideways = Literal["left", "right"]
Upright = Literal["up", "down"]


class Placed(Protocol):
    """Anything with two numbers; one that is missing or not finite keeps it off every front."""

    @property
    def x(self) -> float | None: ...
    @property
    def y(self) -> float | None: ...


P = TypeVar("P", bound=Placed)


@dataclass(frozen=True, slots=True)
class FrontRow(Generic[P]):
    """A member of the front and the points it dominates (at least as good in both numbers, better in one)."""

    point: P
    dominated: list[P]


def front(points: Sequence[P], better_x: Sideways = "left", better_y: Upright = "up") -> list[P]:
    """The points that no other one dominates, from left to right. Equal points stand on it together."""
    placed = sorted(_goodness(points, better_x, better_y), key=lambda one: (-one[0], -one[1]))
    kept: list[P] = []
    best, best_x = -math.inf, math.nan
    for x, y, point in placed:  # best x first: a point is on the front if it is higher than all that came before
        if y > best or (y == best and x == best_x):
            kept.append(point)
            best, best_x = y, x
    return kept if better_x == "left" else kept[::-1]


def front_table(points: Sequence[P], better_x: Sideways = "left", better_y: Upright = "up") -> list[FrontRow[P]]:
    """Who is on the front and what each of them dominates, best score first."""
    placed = _goodness(points, better_x, better_y)
    members = {id(point) for point in front(points, better_x, better_y)}
    rows = [
        (y, FrontRow(point, [p for px, py, p in placed if px <= x and py <= y and (px < x or py < y)]))
        for x, y, point in placed
        if id(point) in members
    ]
    return [row for _, row in sorted(rows, key=lambda one: -one[0])]


def _goodness(points: Sequence[P], better_x: Sideways, better_y: Upright) -> list[tuple[float, float, P]]:
    """Both numbers turned so that more is better."""
    sideways, upright = (-1 if better_x == "left" else 1), (1 if better_y == "up" else -1)
    return [
        (sideways * point.x, upright * point.y, point)
        for point in points
        if point.x is not None and point.y is not None and math.isfinite(point.x) and math.isfinite(point.y)
    ]
