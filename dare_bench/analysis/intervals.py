"""Confidence intervals, and those of a run's metrics from its sample lines. The statistics are scipy's, imported inside
the functions: they take half a second.

Method: Wilson's score interval for values that are all 0 or 1; the BCa bootstrap for 20 to 2000 other values. Fewer
values have Student's t, since the bootstrap is too narrow there; so do more values, where the two agree and t is cheap.
The bootstrap has a fixed seed: equal values always give the same interval.

A group whose tasks all have Wilson intervals has the hull of two: Wilson's interval at the effective sample size of the
weighted mean, and the MOVER interval, which all other groups have. Each alone is too narrow somewhere: the first covers
66% for plain means of tasks of very different sizes, MOVER 86% where right answers are rare or tasks are small. The
hull covers 91% or more in the seeded simulation of its tests (2 to 57 tasks of 3 to 10,042 documents). It covers some
85% where few documents are nearly all right, as Wilson's interval does there.

Where likelihoods are drawn, a score has a second error, and its expected value is not the score that likelihoods
without noise would have: noise turns right choices into wrong ones more often than the reverse. The interval "and
draws" holds that score, too. Adding the noise of a second set of draws (``redrawn``) shifts a score by as much again,
to first order, so twice a document's value less its redrawn value has the expected value without noise (simulation
extrapolation; Cook and Stefanski, Journal of the American Statistical Association 89, 1994). The interval is the hull
of that of the documents and of Student's t of the corrected values. In the simulation of its tests it covers 92% or
more while the noise is at most half of the spread of the documents' margins; Wilson's alone covers less than 50%.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dare_bench.runs.results import document_count, metric_keys, stderr_of, value_range, weights_of
from dare_bench.runs.schema import CI, DrawNoise
from dare_bench.runs.writer import plain

LEVEL = 0.95
"""The level of intervals where no other one is given."""
BOOTSTRAP_FROM, BOOTSTRAP_TO = 20, 2000
RESAMPLES = 9999
ANYTIME = "anytime beta-binomial"
"""The method of intervals of evaluations that may stop."""
PRIOR_VALUES = 100
"""How many values the prior of :func:`anytime` weighs: its intervals are narrowest for some times as many."""
BATCH_VALUES = 2_000_000
"""Resampled values in memory at a time, which bounds a bootstrap to about 30 MB."""


@dataclass(frozen=True, slots=True)
class Interval:
    """``lo`` and ``hi`` bound the mean with probability ``level``; None where ``n`` values do not
    determine them."""

    method: str
    level: float
    lo: float | None
    hi: float | None
    n: int

    def within(self, least: float, most: float) -> Interval:
        """The interval, clipped to the range of the metric."""
        if self.lo is None or self.hi is None:
            return self
        return replace(self, lo=max(self.lo, least), hi=min(self.hi, most))


def interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The confidence interval of the mean of ``values`` (one for each document; all finite).

    There is no interval (``method`` is "none") where the variance is unknown: without values, for a single value that
    is neither 0 nor 1, and for equal values.
    """
    numbers = [float(value) for value in values]
    if not all(map(math.isfinite, numbers)):
        raise ValueError("an interval needs finite values; leave out NaN and infinite values")
    n = len(numbers)
    if n and all(number in (0.0, 1.0) for number in numbers):
        return wilson(int(sum(numbers)), n, level)
    if n < 2 or min(numbers) == max(numbers):
        return Interval("none", level, None, None, n)
    if BOOTSTRAP_FROM <= n <= BOOTSTRAP_TO and (ends := bootstrap([numbers], level)):
        return Interval("BCa bootstrap", level, *ends, n)
    return student(numbers, level)


def wilson(successes: int, n: int, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a share: ``successes`` of ``n``."""
    lo, hi = wilson_bounds(successes / n, n, level)
    return Interval("Wilson", level, lo, hi, n)


def wilson_bounds(share: float, n: float, level: float) -> tuple[float, float]:
    """Wilson's bounds of a share that need not be a multiple of 1/``n``: a published one, or a mean of shares (Journal
    of the American Statistical Association 22, 1927). They are written out because most runs need no other
    statistic."""
    from scipy.special import ndtri

    z = -float(ndtri((1 - level) / 2))
    whole = 1 + z**2 / n
    center = (share + z**2 / (2 * n)) / whole
    half = z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)) / whole
    # The bounds at shares of 0 and 1 are exactly 0 and 1; rounding misses them by 1e-17.
    return 0.0 if share <= 0 else center - half, 1.0 if share >= 1 else center + half


def anytime(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The interval of the mean of values from 0 to 1 that holds at whatever number of values one stops: all of a
    sequence of such intervals hold the mean together with probability ``level``.

    It has the means m that a bettor has not refuted. Each value is bet on as if it were 0 or 1 with a chance that has
    the prior Beta(P m, P (1 - m)), P = :data:`PRIOR_VALUES`; the wealth is a nonnegative martingale if values are 0 or
    1, and a supermartingale for others between (Ville; Waudby-Smith and Ramdas, JRSS B 86, 2024, with a mixture of
    bets). From 300 values on it is 1.55 to 1.7 times as wide as the normal interval.
    """
    from scipy.optimize import brentq
    from scipy.special import betaln, xlog1py, xlogy

    n, total, prior, least = len(values), math.fsum(values), PRIOR_VALUES, 1e-12
    if n == 0:
        return Interval("none", level, None, None, 0)

    def refuted(mean: float) -> float:
        """The logarithm of the wealth against ``mean``, above 0 where that is refuted."""
        hits, misses = prior * mean, prior * (1 - mean)
        gain = betaln(hits + total, misses + n - total) - betaln(hits, misses)
        return float(gain - xlogy(total, mean) - xlog1py(n - total, -mean) + math.log(1 - level))

    center = min(max(total / n, 2 * least), 1 - 2 * least)
    lo = brentq(refuted, least, center) if refuted(least) > 0 else 0.0
    hi = brentq(refuted, center, 1 - least) if refuted(1 - least) > 0 else 1.0
    return Interval(ANYTIME, level, float(lo), float(hi), n)


def ratio_interval(sums: Sequence[float], counts: Sequence[float], level: float = LEVEL) -> Interval:
    """The interval of ``sum(sums) / sum(counts)`` where a document has several values (IFEval's instructions), from
    resampled documents."""
    n = len(sums)
    ratios = {s / c for s, c in zip(sums, counts, strict=True) if c}
    ends = bootstrap([list(map(float, sums)), list(map(float, counts))], level) if len(ratios) > 1 else None
    if ends is None:
        return Interval("none", level, None, None, n)
    return Interval("BCa bootstrap over documents", level, *ends, n)


def corrected(value: float, redrawn: float) -> float:
    """The value of a document without the noise of its draws, to first order; beyond 0 and 1 for single documents."""
    return 2 * value - redrawn


def with_draws(documents: Interval, values: Sequence[float], redrawn: Sequence[float]) -> Interval:
    """The interval of ``values`` that also holds the score without the noise of draws (see the module)."""
    if documents.lo is None or documents.hi is None or len(values) < 2:
        return documents
    nested = student([corrected(*pair) for pair in zip(values, redrawn, strict=True)], documents.level)
    if nested.lo is None or nested.hi is None:
        return documents
    lo, hi = min(documents.lo, nested.lo), max(documents.hi, nested.hi)
    return replace(documents, method=f"{documents.method} and draws", lo=lo, hi=hi)


def draw_noise(redrawn: Sequence[float]) -> DrawNoise:
    """The noise of a score whose documents have these redrawn values: shares of draws that give a right choice."""
    sd = math.sqrt(math.fsum(share * (1 - share) for share in redrawn)) / len(redrawn)
    return DrawNoise(sd=sd, undecided=sum(0.05 <= share <= 0.95 for share in redrawn))


def separable(sd: float, level: float = LEVEL) -> float:
    """The difference of two scores that independent draws, each with this standard deviation, exceed with a probability
    of ``1 - level``."""
    from scipy.special import ndtri

    return float(ndtri(0.5 + level / 2)) * math.sqrt(2) * sd


def from_stderr(value: float, stderr: float, n: int, level: float = LEVEL) -> Interval:
    """The normal interval around an estimate of which only the standard error is known (a BLEU, an F1 over all
    documents). A standard error of 0 means equal documents, not an exact estimate: no interval."""
    if stderr <= 0:
        return Interval("none", level, None, None, n)
    from scipy.stats import norm

    half = float(norm.ppf(0.5 + level / 2)) * stderr
    return Interval("normal", level, value - half, value + half, n)


def mean_of(
    intervals: Sequence[Interval], values: Sequence[float], weights: Sequence[float] = ()
) -> tuple[float, Interval | None]:
    """The mean of independent estimates (plain, or by ``weights`` that sum to 1) and its interval; None where one of
    them has no interval.

    On each side, the squared distance is the sum of the squared weighted distances of that side (the MOVER rule of Zou
    and Donner, Statistics in Medicine 27, 2008). So the interval keeps the asymmetry of its parts, and a mean of shares
    stays within 0 and 1.
    """
    weights = weights or [1 / len(values)] * len(values)
    mean = math.fsum(weight * value for weight, value in zip(weights, values, strict=True))
    below = above = 0.0
    for part, value, weight in zip(intervals, values, weights, strict=True):
        if part.lo is None or part.hi is None:
            return mean, None
        below += (weight * (value - part.lo)) ** 2
        above += (weight * (part.hi - value)) ** 2
    level, n = min(part.level for part in intervals), min(part.n for part in intervals)
    return mean, Interval("MOVER", level, mean - math.sqrt(below), mean + math.sqrt(above), n)


def difference_bounds(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float]:
    """The interval of the first of two independent estimates less the second, each (value, lo, hi): MOVER, which for
    Wilson's intervals is Newcombe's method 10 (Statistics in Medicine 17, 1998)."""
    (a, a_lo, a_hi), (b, b_lo, b_hi) = first, second
    return a - b - math.hypot(a - a_lo, b_hi - b), a - b + math.hypot(a_hi - a, b - b_lo)


def group_interval(intervals: Sequence[Interval], values: Sequence[float], weights: Sequence[float]) -> Interval | None:
    """The interval of a group's score, the weighted mean of its tasks' scores (see the module); None where a task has
    no interval. ``weights`` sum to 1."""
    n = sum(part.n for part in intervals)
    share, mover = mean_of(intervals, values, weights)
    if mover is None or mover.lo is None or mover.hi is None:
        return None
    if not all(part.method.startswith("Wilson") for part in intervals):
        return replace(mover, n=n)
    effective = 1 / math.fsum(weight * weight / part.n for weight, part in zip(weights, intervals, strict=True))
    lo, hi = wilson_bounds(min(max(share, 0.0), 1.0), effective, mover.level)
    hull = Interval("Wilson over tasks and MOVER", mover.level, min(lo, mover.lo), max(hi, mover.hi), n)
    return hull.within(0.0, 1.0)


def student(numbers: list[float], level: float) -> Interval:
    """Student's t interval of the mean of at least two numbers; none where their variance is 0 or underflows."""
    from scipy import stats

    n, scale = len(numbers), float(stats.sem(numbers))
    if scale == 0:
        return Interval("none", level, None, None, n)
    lo, hi = stats.t.interval(level, n - 1, loc=sum(numbers) / n, scale=scale)
    return Interval("Student t", level, float(lo), float(hi), n)


def bootstrap(columns: list[list[float]], level: float) -> tuple[float, float] | None:
    """The BCa bootstrap interval of the mean of one column, or of the ratio of the sums of two; None where it is not
    finite, as for equal numbers."""
    import numpy as np
    from scipy import stats

    def statistic(*parts: Any, axis: int = -1) -> Any:
        return np.mean(parts[0], axis=axis) if len(parts) == 1 else parts[0].sum(axis) / parts[1].sum(axis)

    with np.errstate(all="ignore"):
        ends = stats.bootstrap(
            [np.asarray(column) for column in columns],
            statistic,
            paired=len(columns) > 1,
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, BATCH_VALUES // len(columns[0])),
            confidence_level=level,
            method="BCa",
            rng=np.random.default_rng(0),
        ).confidence_interval
    lo, hi = float(ends.low), float(ends.high)
    return (lo, hi) if math.isfinite(lo) and math.isfinite(hi) else None


def confidence_intervals(
    results: Mapping[str, Any], samples: Mapping[str, Iterable[Mapping[str, Any]]], *, stops: bool = False
) -> dict[str, dict[str, CI]]:
    """The ``ci`` part of the ``dare_bench`` block: by task, then by "metric,filter".

    ``results`` is lm-eval's dict, ``samples`` its logged samples by task. The interval comes from the documents' values
    where the reported score is their mean (or the mean over all their parts). That of a group comes from the intervals
    of its tasks where its score is their mean. Other intervals come from lm-eval's standard error; a metric without one
    has no entry. Every interval stays within the range of its metric.

    ``stops``: the evaluation ends when its intervals are narrow (``--until-halfwidth``), so they are those of
    :func:`anytime`, of scores that are means of values from 0 to 1; others have none.
    """
    rows = {**results.get("groups", {}), **results.get("results", {})}
    groups = {name for name, parts in results.get("group_subtasks", {}).items() if parts}
    intervals: dict[str, dict[str, Interval]] = {name: {} for name in rows}
    noise: dict[tuple[str, str], DrawNoise] = {}
    for name in sorted(rows, key=lambda name: name in groups):  # groups need their tasks' intervals
        values, redrawn = ({}, {}) if name in groups else _values_by_key(samples.get(name, ()))
        for metric, filter_name, value in metric_keys(rows[name]):
            key = f"{metric},{filter_name}"
            estimate = None
            if name not in groups:
                estimate = _of_documents(values.get(key, []), value, stops)
                if estimate is not None and (drawn := redrawn.get(key)) is not None:
                    estimate, noise[name, key] = with_draws(estimate, values[key], drawn), draw_noise(drawn)
            elif (weights := weights_of(results, rows, name, key)) and all(key in intervals[task] for task in weights):
                parts = [intervals[task][key] for task in weights]
                estimate = group_interval(parts, [float(rows[task][key]) for task in weights], list(weights.values()))
            stderr = stderr_of(rows[name], metric, filter_name)
            if estimate is None and stderr is not None and not stops:
                estimate = from_stderr(value, stderr, document_count(results, name))
            if estimate is not None:
                intervals[name][key] = estimate.within(*value_range(metric, value))
    return {
        name: {
            key: CI(method=ci.method, level=ci.level, lo=ci.lo, hi=ci.hi, n=ci.n, draws=noise.get((name, key)))
            for key, ci in by_key.items()
        }
        for name, by_key in intervals.items()
        if by_key
    }


def _values_by_key(
    rows: Iterable[Mapping[str, Any]],
) -> tuple[dict[str, list[Any]], dict[str, list[float]]]:
    """The documents' values of each metric, and those redrawn where likelihoods of the metric were drawn."""
    values: dict[str, list[Any]] = {}
    redrawn: dict[str, list[float]] = {}
    drawn = set()
    for row in rows:
        for metric in row.get("metrics", ()):
            if metric in row:
                key, value, share = f"{metric},{row.get('filter', 'none')}", plain(row[metric]), None
                if metric in row.get("redrawn", ()):
                    share = row["redrawn"][metric]
                    drawn.add(key)
                values.setdefault(key, []).append(value)
                redrawn.setdefault(key, []).append(value if share is None else share)
    return values, {key: redrawn[key] for key in drawn}


def _of_documents(values: list[Any], reported: float, stops: bool) -> Interval | None:
    """The interval from documents' values, if the reported score is a mean of them; else None."""
    if values and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        if math.isclose(sum(values) / len(values), reported, rel_tol=1e-6, abs_tol=1e-9):
            bounded = min(values) >= 0 and max(values) <= 1
            return interval(values) if not stops else anytime(values) if bounded else None
        return None
    if stops:
        return None
    if values and all(isinstance(v, (list, tuple)) and all(isinstance(x, (int, float)) for x in v) for v in values):
        sums, counts = [float(sum(v)) for v in values], [float(len(v)) for v in values]
        if sum(counts) and math.isclose(sum(sums) / sum(counts), reported, rel_tol=1e-6, abs_tol=1e-9):
            return ratio_interval(sums, counts)
    return None
