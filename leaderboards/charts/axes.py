"""Scales from values to coordinates in the drawing, their ticks, and the labels of the ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dare_bench.formatting import compact


@dataclass(frozen=True, slots=True)
class AxisScale:
    """Maps a value between ``lo`` and ``hi`` to a coordinate between ``start`` and ``end``; ``ticks`` are values."""

    lo: float
    hi: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        """The coordinate of ``value``; a value outside the scale is drawn at its end."""
        value = min(max(value, self.lo), self.hi)
        if self.log:
            share = math.log(value / self.lo) / math.log(self.hi / self.lo)
        else:
            share = (value - self.lo) / (self.hi - self.lo)
        return self.start + share * (self.end - self.start)


def linear(values: Iterable[float], start: float, end: float, share: bool = False) -> AxisScale:
    """A scale that contains all ``values`` and ends on ticks; that of a share stays within 0 to 1.

    Equal values get a margin on both sides; without values the scale is from 0 to 1.
    """
    numbers = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    floor, ceiling = (0.0, 1.0) if share else (-math.inf, math.inf)
    lo, hi = max(min(numbers), floor), min(max(numbers), ceiling)
    if hi - lo <= 1e-9 * max(abs(lo), abs(hi)):
        margin = 0.05 if share else abs(hi) * 0.1 or 1.0
        lo, hi = max(lo - margin, floor), min(hi + margin, ceiling)
    step = nice_step((hi - lo) / 5)
    first, last = math.floor(lo / step + 1e-9), math.ceil(hi / step - 1e-9)
    ticks = tuple(round(at * step, 12) for at in range(first, last + 1))
    return AxisScale(ticks[0], ticks[-1], start, end, ticks)


def logarithmic(values: Iterable[float], start: float, end: float) -> AxisScale:
    """A logarithmic scale with a small margin around ``values``; values that are not positive or finite are ignored.

    Ticks are 1, 2, 5, 10 ... where they fit, powers of ten on a wide scale, even steps on one of less than a factor 3.
    """
    numbers = [value for value in values if value > 0 and math.isfinite(value)] or [1.0, 10.0]
    lo, hi = min(numbers), max(numbers)
    margin = max((hi / lo) ** 0.07, 1.12)
    lo, hi = lo / margin, hi * margin
    return AxisScale(lo, hi, start, end, _log_ticks(lo, hi), log=True)


def _log_ticks(lo: float, hi: float, most: int = 8) -> tuple[float, ...]:
    if hi / lo < 3:
        step = nice_step((hi - lo) / 4)
        return tuple(round(at * step, 12) for at in range(math.ceil(lo / step), math.floor(hi / step) + 1))
    first, last = math.floor(math.log10(lo)), math.ceil(math.log10(hi))
    for parts in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [part * 10.0**power for power in range(first, last + 1) for part in parts]
        ticks = [tick for tick in ticks if lo <= tick <= hi]
        if 2 <= len(ticks) <= most:
            return tuple(ticks)
    return tuple(ticks[:: math.ceil(len(ticks) / most)])


def nice_step(rough: float) -> float:
    """The smallest step of 1, 2, 2.5 or 5 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next((part * power for part in (1, 2, 2.5, 5) if part * power >= rough * (1 - 1e-9)), 10 * power)


def tick_labels(ticks: Sequence[float], *, percent: bool = False) -> list[str]:
    """A label for each tick, with enough digits to distinguish them; shares in percent, without the sign."""
    values = [100 * tick if percent else tick for tick in ticks]
    labels: list[str] = []
    for digits in range(3, 12):
        labels = [compact(value, digits) for value in values]
        if len(set(labels)) == len(labels):
            break
    return labels


def px(coordinate: float) -> str:
    """A coordinate to a tenth of a unit, in as few characters as possible."""
    text = f"{coordinate:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
