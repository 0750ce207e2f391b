"""Paired tests of two scores of the same documents: difference, interval, p-value, and power.

Only the difference of each document counts, so the documents' difficulty cancels.

The interval is the BCa bootstrap over documents where at least 50 of them changed. With fewer it is too narrow (it
covers 62% for 95 at 50 documents of which 2% change, 90% where 10% change). Then the interval is an adjusted Wald
interval with two added documents, one won and one lost. For 0/1 values that is the interval of Bonett and Price
(Journal of Educational and Behavioral Statistics 37, 2012), one of those that Fagerland, Lydersen and Laake recommend
(Statistics in Medicine 33, 2014). For other values the added documents change by the root mean square of all changes,
and Student's t replaces the normal distribution. Where all changes have one sign they change by the largest, since
changes of the other sign are unknown. The interval is conservative, except where a handful of documents makes all of
the difference.

Whether 0 lies in the interval is decided by the test: an end that contradicts p is moved to 0. With few documents the
exact test is the stricter one (five wins of five documents: p = 0.062, Bonett and Price from 0.20), so that this widens
the interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

from dare_bench.analysis.intervals import BATCH_VALUES, BOOTSTRAP_TO, LEVEL, RESAMPLES, bootstrap, student

SIGNIFICANT = 0.05
"""The largest p that is significant where no interval's level decides."""
MCNEMAR = "exact McNemar"
"""The name of the test of values that are all 0 or 1."""
MOST_PERMUTED = 50
"""Maximum number of permutation tests of one set of pairs: each takes about a second."""
ENOUGH_CHANGES = 50
"""Number of changed documents from which the bootstrap is used."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Second minus first, the mean over ``n`` documents, on the scale of the values.

    ``lo`` and ``hi`` bound it at ``level`` by ``method`` (None: no interval); ``p`` is two-sided, by ``test``, not
    adjusted for multiple comparisons. ``won`` and ``lost`` count the documents whose second value is larger and
    smaller, whatever the direction of the metric.
    """

    value: float
    lo: float | None
    hi: float | None
    level: float
    method: str
    n: int
    p: float | None
    test: str
    won: int
    lost: int

    def reversed(self) -> Self:
        """The same difference as first minus second."""
        lo, hi = (None if bound is None else -bound for bound in (self.hi, self.lo))
        return replace(self, value=-self.value, lo=lo, hi=hi, won=self.lost, lost=self.won)


def paired_difference(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Difference:
    """Compare two values of each document (in the same order; all finite; at least one).

    Values that are all 0 or 1 are tested by McNemar's exact test, others by the permutation test that flips the signs
    of the documents' differences. Where more than 2000 changed it is Student's t test, which agrees there. The module
    describes the intervals, which agree with p; there is none where nothing changed, unless the values are 0 and 1.

    Raises:
        ValueError: no documents, different numbers of values, or a value that is not finite.
    """
    pairs = [(float(a), float(b)) for a, b in zip(first, second, strict=True)]
    if not pairs:
        raise ValueError("a paired difference needs at least one document")
    changes = [b - a for a, b in pairs]
    if not all(map(math.isfinite, changes)):
        raise ValueError("a paired difference needs finite values; leave out documents with NaN or infinite ones")
    n, won, lost = len(pairs), sum(c > 0 for c in changes), sum(c < 0 for c in changes)
    shares = all(value in (0.0, 1.0) for pair in pairs for value in pair)
    p, test = (mcnemar(won, lost), MCNEMAR) if shares else _permutation_test(changes)
    lo, hi, method = _bounds(changes, shares, level)
    value = math.fsum(changes) / n
    if lo is not None and hi is not None:
        lo, hi = _as_tested(lo, hi, p, value, level)
    return Difference(value, lo, hi, level, method, n, p, test, won, lost)


def with_draws(difference: Difference, first: Sequence[float], second: Sequence[float]) -> Difference:
    """A difference whose interval and p also hold for the scores without the noise of drawn likelihoods, of which
    ``first`` and ``second`` are the documents' values: the hull with Student's t interval, and the larger p."""
    from scipy import stats

    changes = [b - a for a, b in zip(first, second, strict=True)]
    if len(changes) < 2 or difference.lo is None or difference.hi is None or difference.p is None:
        return difference
    nested = student(changes, difference.level)
    if nested.lo is None or nested.hi is None:
        return difference
    lo, hi = min(difference.lo, nested.lo), max(difference.hi, nested.hi)
    opposed = difference.value * math.fsum(changes) < 0
    p = 1.0 if opposed else max(difference.p, float(stats.ttest_1samp(changes, 0.0).pvalue))
    return replace(difference, lo=lo, hi=hi, p=p, method=f"{difference.method} and draws")


def _as_tested(lo: float, hi: float, p: float, value: float, level: float) -> tuple[float, float]:
    """The interval, which contains 0 unless the test rejects it."""
    if p > 1 - level:
        return min(lo, 0.0), max(hi, 0.0)
    return (max(lo, 0.0), hi) if value > 0 else (lo, min(hi, 0.0))


def mcnemar(won: int, lost: int) -> float:
    """The two-sided p of McNemar's exact test from the numbers of documents won and lost."""
    from scipy import stats  # statsmodels has the same line, and imports pandas

    return min(1.0, 2 * float(stats.binom.cdf(min(won, lost), won + lost, 0.5)))


def holm(p: Sequence[float | None]) -> list[float | None]:
    """p-values adjusted by Holm's method over all of them (None stays None and does not count): of n values the k-th
    smallest is multiplied by n - k + 1. It is at least as large as those before it, and at most 1."""
    known = sorted(value for value in p if value is not None)
    # statsmodels' multipletests collects garbage at each call, which takes longer than all tests of a large site.
    adjusted: dict[float, float] = {}
    largest = 0.0
    for smaller, value in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - smaller) * value))
        adjusted.setdefault(value, largest)  # equal values have the p of the first
    return [None if value is None else adjusted[value] for value in p]


def _bounds(changes: list[float], shares: bool, level: float) -> tuple[float | None, float | None, str]:
    changed = sum(change != 0 for change in changes)
    if changed >= ENOUGH_CHANGES and min(changes) < max(changes):
        if len(changes) <= BOOTSTRAP_TO and (ends := bootstrap([changes], level)):
            return *ends, "paired BCa bootstrap"
        if len(changes) > BOOTSTRAP_TO and not shares:
            bounds = student(changes, level)
            return bounds.lo, bounds.hi, "paired Student t"
    return _adjusted(changes, shares, level)


def _adjusted(changes: list[float], shares: bool, level: float) -> tuple[float | None, float | None, str]:
    """Wald's interval with two added documents, one won and one lost by ``size``: Bonett and Price's for 0/1 values."""
    from scipy import stats

    n, size = len(changes), 1.0 if shares else _typical_change(changes)
    if size == 0 or (n < 2 and not shares):
        return None, None, "none"
    mean = math.fsum(changes) / (n + 2)
    variance = (math.fsum(change * change for change in changes) + 2 * size * size) / (n + 2) - mean * mean
    quantile = stats.norm.ppf(0.5 + level / 2) if shares else stats.t.ppf(0.5 + level / 2, n + 1)
    half = float(quantile) * math.sqrt(variance / (n + 2))
    if shares:
        return max(-1.0, mean - half), min(1.0, mean + half), "Bonett-Price"
    return mean - half, mean + half, "adjusted Student t"


def _typical_change(changes: list[float]) -> float:
    changed = [change for change in changes if change]
    if not changed or min(changed) > 0 or max(changed) < 0:
        return max(map(abs, changes))
    return math.sqrt(statistics.fmean(change * change for change in changed))


def _permutation_test(changes: list[float]) -> tuple[float, str]:
    """p under the hypothesis that both signs of each document's difference are equally likely, and the test's name."""
    import numpy as np
    from scipy import stats

    changed = np.asarray([change for change in changes if change])
    if len(changed) < 2:
        return 1.0, "paired permutation"
    if len(changed) > BOOTSTRAP_TO:
        return float(stats.ttest_1samp(changes, 0.0).pvalue), "paired Student t"

    def total(values: Any, axis: int = -1) -> Any:
        return values.sum(axis)

    with np.errstate(all="ignore"):
        result = stats.permutation_test(
            (changed,),
            total,
            permutation_type="samples",
            vectorized=True,
            n_resamples=RESAMPLES,
            batch=max(1, BATCH_VALUES // len(changed)),
            rng=np.random.default_rng(0),
        )
    return float(result.pvalue), "paired permutation"


def all_pairs(strata: Sequence[Sequence[Sequence[float]]], weights: Sequence[float]) -> list[list[float]]:
    """The two-sided p of all pairs of scores, each the mean of the same strata's means by ``weights``.

    ``strata``: by stratum, then by score, the documents' values in one order. A plain mean over all documents is tested
    as by :func:`paired_difference`; another mean, and pairs that would need more than :data:`MOST_PERMUTED` permutation
    tests, by the difference over its adjusted standard error (that of the
    interval of this module).
    """
    import numpy as np

    columns = [np.asarray(values, dtype=float) for values in strata]
    sizes = [values.shape[1] for values in columns]
    if all(math.isclose(weight, size / sum(sizes)) for weight, size in zip(weights, sizes, strict=True)):
        return _pooled_pairs(np.concatenate(columns, axis=1))
    return _stratified_pairs(columns, weights)


def _pooled_pairs(values: Any) -> list[list[float]]:
    """The p of all pairs of rows of ``values``; McNemar's test of all rows of 0 and 1 at once."""
    import numpy as np
    from scipy.special import bdtr  # stats.binom has the same, and takes half a second to import

    count = len(values)
    shares = np.isin(values, (0.0, 1.0)).all(axis=1)
    p = np.ones((count, count))
    won = np.where(shares[:, None], values, 0.0) @ np.where(shares[:, None], 1 - values, 0.0).T
    fewer, changed = np.minimum(won, won.T), won + won.T
    both = np.outer(shares, shares)
    p[both] = np.minimum(1.0, 2 * bdtr(np.rint(fewer), np.rint(changed), 0.5))[both]
    others = [(a, b) for a in range(count) for b in range(a) if not both[a, b]]
    if len(others) > MOST_PERMUTED:
        by_error = np.asarray(_stratified_pairs([values], [1.0]))
        return np.where(both, p, by_error).tolist()
    for a, b in others:
        p[a, b] = p[b, a] = _permutation_test((values[a] - values[b]).tolist())[0]
    return p.tolist()


def _stratified_pairs(columns: Sequence[Any], weights: Sequence[float]) -> list[list[float]]:
    import numpy as np
    from scipy.special import ndtr, stdtr

    shares = all(np.isin(values, (0.0, 1.0)).all() for values in columns)
    difference = variance = np.zeros((len(columns[0]), len(columns[0])))
    for values, weight in zip(columns, weights, strict=True):
        n, sums, products = values.shape[1], values.sum(axis=1), values @ values.T
        change = sums[:, None] - sums
        squares = np.maximum(np.diag(products)[:, None] + np.diag(products) - 2 * products, 0.0)
        changed = squares if shares else np.stack([(values != row).sum(axis=1) for row in values])
        added = np.divide(squares, changed, out=np.zeros_like(squares), where=changed > 0) if not shares else 1.0
        spread = (squares + 2 * added) / (n + 2) - (change / (n + 2)) ** 2
        difference = difference + weight * change / n
        variance = variance + weight**2 * spread / (n + 2)
    ratio = np.divide(abs(difference), np.sqrt(variance), out=np.zeros_like(difference), where=variance > 0)
    below = ndtr(-ratio) if shares else stdtr(min(values.shape[1] for values in columns) + 1, -ratio)
    return (2 * below).tolist()


def smallest_drop(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> float:
    """The smallest drop that a test on these pairs detects with a power of 80%, on the values' scale; infinite where
    there are too few documents."""
    changes = [b - a for a, b in zip(first, second, strict=True)]
    if all(value in (0.0, 1.0) for value in (*first, *second)):
        return smallest_detectable(len(changes), sum(map(bool, changes)) / len(changes), level)
    return smallest_detectable_mean(len(changes), statistics.stdev(changes) if len(changes) > 1 else 0.0, level)


@lru_cache(maxsize=4096)
def smallest_detectable(n: int, discordant: float, level: float = LEVEL, power: float = 0.8) -> float:
    """The smallest drop of a 0/1 score that a test on ``n`` paired documents detects with probability ``power``.

    The power of the exact two-sided McNemar test at ``1 - level``, where a share ``discordant`` of the documents
    changes (a larger drop needs more changes, all of them losses). Infinite where even the
    loss of every document would not be significant (fewer than six documents at 95%).
    """
    from scipy.optimize import brentq

    def missing_power(drop: float) -> float:
        return _power(n, max(discordant, drop), drop, level) - power

    if n < 1 or missing_power(1.0) < 0:
        return math.inf
    return float(brentq(missing_power, 0.0, 1.0, xtol=1e-5))


def _power(n: int, discordant: float, drop: float, level: float) -> float:
    """The probability of a significant drop: over the number of documents that change, then over those lost."""
    import numpy as np
    from scipy.stats import binom

    if discordant <= 0:
        return 0.0
    low, high = binom.ppf([1e-9, 1 - 1e-9], n, discordant)
    changed = np.arange(max(0, int(low)), int(high) + 1)
    # The largest number of wins among these changes at which the two-sided test still rejects; -1: none.
    wins = binom.ppf((1 - level) / 2, changed, 0.5)
    wins = np.where(binom.cdf(wins, changed, 0.5) > (1 - level) / 2, wins - 1, wins)
    win_share = (discordant - drop) / (2 * discordant)
    return float(np.sum(binom.pmf(changed, n, discordant) * binom.cdf(wins, changed, win_share)))


def smallest_detectable_mean(n: int, deviation: float, level: float = LEVEL, power: float = 0.8) -> float:
    """The smallest detectable drop of other values, by the power of the paired t test: ``deviation`` is the standard
    deviation of the documents' differences, and the drop is on the values' scale. Infinite below two documents."""
    from statsmodels.stats.power import TTestPower

    if n < 2:
        return math.inf
    if deviation <= 0:
        return 0.0
    effect = TTestPower().solve_power(nobs=n, alpha=1 - level, power=power, alternative="two-sided")
    return float(effect) * deviation
