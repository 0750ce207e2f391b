"""Confidence intervals, all by scipy and statsmodels. Both are imported inside the functions: they take a second.

Which method: Wilson's score interval for values that are all 0 or 1; the BCa bootstrap for other values when there are
between 20 and 2000 of them; Student's t for fewer (the bootstrap is too narrow there) and for more (the two agree there
and t costs nothing). The bootstrap's draws are fixed, so the same values always give the same interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BOOTSTRAP_FROM, BOOTSTRAP_TO = 20, 2000
_RESAMPLES = 9999
# Resampled values held at a time: bounds the memory of a bootstrap to some 30 MB whatever the sample size.
BATCH_VALUES = 2_000_000


@dataclass(frozen=True, slots=True)
class Interval:
    """``lo`` and ``hi`` bound the mean with probability ``level``; None where ``n`` values cannot tell."""

    method: str
    level: float
    lo: float | None
    hi: float | None
    n: int


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """The confidence interval of the mean of ``values`` (one for each document; all finite).

    No value gives no interval, nor does a single one that is neither 0 nor 1, nor equal ones: nothing is known then of
    how they vary (``method`` is "none").
    """
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("an interval needs finite values; leave out what is NaN or infinite")
    n = len(numbers)
    if n and all(number in (0.0, 1.0) for number in numbers):
        return wilson(int(sum(numbers)), n, level)
    if n < 2 or min(numbers) == max(numbers):
        return Interval("none", level, None, None, n)
    if BOOTSTRAP_FROM <= n <= BOOTSTRAP_TO:
        lo, hi = bootstrap_mean(numbers, level)
        if math.isfinite(lo) and math.isfinite(hi):
            return Interval("BCa bootstrap", level, lo, hi, n)
    return student(numbers, level)


def wilson(successes: int, n: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share: ``successes`` of ``n``."""
    from statsmodels.stats.proportion import proportion_confint

    lo, hi = proportion_confint(successes, n, alpha=1 - level, method="wilson")
    # The exact ends at 0 and n successes are 0 and 1; rounding leaves 1e-17 beside them.
    return Interval("Wilson", level, 0.0 if successes == 0 else float(lo), 1.0 if successes == n else float(hi), n)


def ratio_interval(sums: Sequence[float], counts: Sequence[float], level: float = 0.95) -> Interval:
    """The interval of ``sum(sums) / sum(counts)`` where a document brings several values (IFEval's instructions):
    documents are drawn again whole, since the values of one document belong together."""
    n = len(sums)
    ratios = {s / c for s, c in zip(sums, counts, strict=True) if c}
    if n < 2 or len(ratios) < 2:
        return Interval("none", level, None, None, n)
    lo, hi = _bootstrap([list(map(float, sums)), list(map(float, counts))], level)
    if not (math.isfinite(lo) and math.isfinite(hi)):
        return Interval("none", level, None, None, n)
    return Interval("BCa bootstrap over documents", level, lo, hi, n)


def from_stderr(value: float, stderr: float, n: int, level: float = 0.95) -> Interval:
    """The normal interval around an estimate whose standard error is known but not its parts (group means)."""
    from scipy.stats import norm

    half = float(norm.ppf(0.5 + level / 2)) * stderr
    return Interval("normal", level, value - half, value + half, n)


def mean_of(intervals: Sequence[Interval], values: Sequence[float]) -> tuple[float, Interval | None]:
    """The plain mean of independent estimates and its interval; None where one of them has no interval.

    Each side's distance is the root of the summed squares of that side's distances (the MOVER rule of Zou and Donner,
    Statistics in Medicine 27, 2008), so the interval keeps the lean of its parts and a mean of shares stays within 0
    and 1.
    """
    k = len(values)
    mean = sum(values) / k
    below = above = 0.0
    for part, value in zip(intervals, values, strict=True):
        if part.lo is None or part.hi is None:
            return mean, None
        below += (value - part.lo) ** 2
        above += (part.hi - value) ** 2
    level, n = min(part.level for part in intervals), min(part.n for part in intervals)
    return mean, Interval("MOVER", level, mean - math.sqrt(below) / k, mean + math.sqrt(above) / k, n)


def student(numbers: list[float], level: float) -> Interval:
    """Student's t interval of the mean of at least two numbers."""
    from scipy import stats

    n = len(numbers)
    lo, hi = stats.t.interval(level, n - 1, loc=sum(numbers) / n, scale=float(stats.sem(numbers)))
    return Interval("Student t", level, float(lo), float(hi), n)


def bootstrap_mean(numbers: list[float], level: float) -> tuple[float, float]:
    """The BCa bootstrap interval of a mean; NaN where the numbers are all equal."""
    return _bootstrap([numbers], level)


def _bootstrap(columns: list[list[float]], level: float) -> tuple[float, float]:
    """BCa interval of the mean of one column, or of the ratio of the sums of two."""
    import numpy as np
    from scipy import stats

    def statistic(*parts: Any, axis: int = -1) -> Any:
        return np.mean(parts[0], axis=axis) if len(parts) == 1 else parts[0].sum(axis) / parts[1].sum(axis)

    with np.errstate(all="ignore"):
        found = stats.bootstrap(
            [np.asarray(column) for column in columns],
            statistic,
            paired=len(columns) > 1,
            vectorized=True,
            n_resamples=_RESAMPLES,
            batch=max(1, BATCH_VALUES // len(columns[0])),
            confidence_level=level,
            method="BCa",
            rng=np.random.default_rng(0),
        ).confidence_interval
    return float(found.low), float(found.high)
