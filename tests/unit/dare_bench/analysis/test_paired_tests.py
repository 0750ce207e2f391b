"""Paired differences against published values and exact enumeration, and by simulation: coverage and size of tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy.stats import norm

from dare_bench.analysis import intervals
from dare_bench.analysis import paired_tests as paired
from dare_bench.analysis.intervals import interval
from dare_bench.analysis.paired_tests import (
    Difference,
    all_pairs,
    holm,
    mcnemar,
    paired_difference,
    smallest_detectable,
    smallest_detectable_mean,
)

SURE = 3
"""Standard errors of a simulation that a measured share may be off."""


def _shares(won: int, lost: int, n: int) -> Difference:
    """The difference of 0/1 values with so many documents won and lost, half of the others right."""
    same = n - won - lost
    first = [0.0] * won + [1.0] * lost + [1.0] * (same // 2) + [0.0] * (same - same // 2)
    return paired_difference(first, [1.0] * won + [0.0] * lost + first[won + lost :])


# Known values


@pytest.mark.parametrize(
    ("won", "lost", "p"),
    # R: binom.test(won, won + lost)$p.value
    [
        (5, 15, 0.04138947),
        (0, 6, 0.03125),
        (6, 0, 0.03125),
        (0, 5, 0.0625),
        (1, 7, 0.0703125),
        (0, 0, 1.0),
        (4, 4, 1.0),
    ],
)
def test_mcnemar_is_the_binomial_test_of_the_documents_that_changed(won: int, lost: int, p: float) -> None:
    result = _shares(won, lost, 60)
    assert result.test == "exact McNemar" and result.p == pytest.approx(p, abs=1e-7)
    assert (result.won, result.lost, result.n) == (won, lost, 60)
    assert result.value == pytest.approx((won - lost) / 60)


@pytest.mark.parametrize(
    ("won", "lost", "n", "lo", "hi"),
    # Fagerland, Lydersen and Laake, Statistics in Medicine 33 (2014): airway hyper-responsiveness (to -0.0134 there,
    # with p = 0.070 by the exact test, which moves that end to 0); and nothing changed.
    [(1, 7, 21, -0.5084, 0.0), (0, 0, 100, -0.02717, 0.02717)],
)
def test_bonett_price_known_values(won: int, lost: int, n: int, lo: float, hi: float) -> None:
    result = _shares(won, lost, n)
    assert result.method == "Bonett-Price"
    assert (result.lo, result.hi) == (pytest.approx(lo, abs=5e-5), pytest.approx(hi, abs=5e-5))


@pytest.mark.parametrize("n", [5, 8, 20, 40])
def test_zero_lies_in_the_interval_unless_the_test_rejects_it(n: int) -> None:
    """Bonett and Price alone exclude 0 where the exact test does not: 5 of 5 won has p = 0.062."""
    for won in range(n + 1):
        for lost in range(n + 1 - won):
            result = _shares(won, lost, n)
            assert result.p is not None and result.lo is not None and result.hi is not None
            assert (result.lo <= 0 <= result.hi) == (result.p > 0.05), (won, lost)
            assert result.lo <= result.value <= result.hi


def test_the_interval_of_other_values_agrees_with_their_test() -> None:
    """Five equal gains: the permutation test has p = 0.062, Student's t excludes 0 by far."""
    result = paired_difference([0.0] * 5, [0.5, 0.5, 0.5, 0.5, 0.25])
    assert result.p == pytest.approx(0.0625) and result.lo == 0.0
    assert paired_difference([0.0] * 5, [0.5, 0.5, 0.5, 0.5, 0.25], level=0.9).lo > 0  # type: ignore[operator]


def test_permutation_of_darwins_maize(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fisher (The Design of Experiments, 1935) counted by hand 1726 of the 32768 ways to set the signs."""
    changes = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
    monkeypatch.setattr(paired, "RESAMPLES", 2**15)
    result = paired_difference([0.0] * 15, changes)
    assert result.test == "paired permutation" and result.p == pytest.approx(1726 / 32768, abs=1e-12)
    monkeypatch.setattr(paired, "RESAMPLES", 9999)
    assert paired_difference([0.0] * 15, changes).p == pytest.approx(1726 / 32768, abs=0.007)


def test_holm_known_values() -> None:
    # R: p.adjust(c(.01, .04, .03, .005), "holm"); an unknown p is no comparison
    assert holm([0.01, 0.04, None, 0.03, 0.005]) == [
        pytest.approx(0.03), pytest.approx(0.06), None, pytest.approx(0.06), pytest.approx(0.02),
    ]  # fmt: skip
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([None]) == [None] and holm([]) == []


def test_holm_is_statsmodels_to_the_last_bit_also_with_ties() -> None:
    from statsmodels.stats.multitest import multipletests

    rng = np.random.default_rng(3)
    for family in (rng.random(60) ** 4, rng.integers(0, 9, 40) / 200, rng.random(1)):
        assert holm(family.tolist()) == multipletests(family, method="holm")[1].tolist()


def test_bca_is_efrons_formula_over_all_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Efron (JASA 82, 1987): corrected quantiles of the whole bootstrap distribution, all 7^7 resamples of it."""
    from scipy.stats import norm

    values = np.asarray([0.0, 0.1, 0.15, 0.2, 0.4, 0.9, 2.0])
    n = len(values)
    means, weights = [], []
    for drawn in combinations_with_replacement(range(n), n):
        counts = np.bincount(drawn, minlength=n)
        means.append(values[list(drawn)].mean())
        weights.append(math.factorial(n) / math.prod(map(math.factorial, counts)) / n**n)
    order = np.argsort(means)
    mean, whole, cumulative = values.mean(), np.asarray(means)[order], np.cumsum(np.asarray(weights)[order])
    z0 = norm.ppf(cumulative[np.searchsorted(whole, mean) - 1])
    jackknife = (values.sum() - values) / (n - 1)
    away = jackknife.mean() - jackknife
    a = (away**3).sum() / (6 * (away**2).sum() ** 1.5)
    ends = [
        whole[np.searchsorted(cumulative, norm.cdf(z0 + (z0 + z) / (1 - a * (z0 + z))))]
        for z in norm.ppf([0.025, 0.975])
    ]
    monkeypatch.setattr(intervals, "RESAMPLES", 100_000)
    assert intervals.bootstrap([list(values)], 0.95) == pytest.approx(ends, abs=0.01)


def test_the_paired_bootstrap_is_scipys() -> None:
    from scipy import stats

    rng = np.random.default_rng(5)
    first = rng.beta(2, 1, 80)
    second = np.clip(first + rng.normal(0.05, 0.2, 80), 0, 1)
    result = paired_difference(list(first), list(second))
    own = stats.bootstrap(
        (first, second), lambda x, y, axis: (y - x).mean(axis), paired=True, method="BCa", n_resamples=20_000, rng=rng
    ).confidence_interval
    assert result.method == "paired BCa bootstrap"
    assert (result.lo, result.hi) == (pytest.approx(own.low, abs=0.003), pytest.approx(own.high, abs=0.003))


# What is used when


def test_the_bootstrap_needs_documents_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paired, "RESAMPLES", 99)
    assert _shares(49, 0, 500).method == "Bonett-Price" and _shares(25, 25, 500).method == "paired BCa bootstrap"
    assert _shares(300, 300, 3000).method == "Bonett-Price", "where the two agree and the bootstrap costs more"
    graded = [0.25 * (i % 3) for i in range(3000)]
    assert paired_difference(graded, graded[::-1]).method == "paired Student t"
    assert paired_difference(graded, graded[::-1]).test == "paired permutation"
    few = paired_difference([0.5] * 200, [0.75] * 10 + [0.5] * 190)
    assert few.method == "adjusted Student t" and few.won == 10
    assert few.lo is not None and few.hi is not None and few.lo < few.value < few.hi


def test_nothing_is_claimed_where_nothing_is_known() -> None:
    same = paired_difference([0.5] * 9, [0.5] * 9)
    assert (same.value, same.lo, same.hi, same.p, same.method) == (0.0, None, None, 1.0, "none")
    item = paired_difference([0.5], [0.7])
    assert (item.lo, item.hi, item.p) == (None, None, 1.0)
    assert paired_difference([0.5, 0.5], [0.7, 0.5]).p == 1.0
    all_alike = paired_difference([0.5] * 60, [0.7] * 60)
    assert all_alike.lo is not None and all_alike.hi is not None and all_alike.lo < 0.2 < all_alike.hi
    every = _shares(0, 60, 60)
    assert every.lo == -1.0 and every.hi is not None and -1 < every.hi < -0.8


def test_zeros_and_ones_always_have_an_interval_within_one() -> None:
    for won, lost, n in ((0, 0, 1), (1, 0, 1), (0, 2, 2), (60, 0, 60), (0, 0, 5000)):
        result = _shares(won, lost, n)
        assert result.lo is not None and result.hi is not None
        assert -1 <= result.lo <= result.value <= result.hi <= 1


def test_the_order_of_the_runs_only_turns_the_sign() -> None:
    item, other = _shares(9, 30, 100), _shares(30, 9, 100)
    assert (item.value, item.lo, item.hi) == pytest.approx((-other.value, -other.hi, -other.lo))
    assert item.p == other.p and (item.won, item.lost) == (other.lost, other.won)


@pytest.mark.parametrize(
    ("first", "second"), [([], []), ([1.0], [1.0, 0.0]), ([math.nan], [0.0]), ([0.0, 1.0], [math.inf, 0.0])]
)
def test_what_cannot_be_paired_is_refused(first: list[float], second: list[float]) -> None:
    with pytest.raises(ValueError, match=r"document|argument|finite"):
        paired_difference(first, second)


# What could be shown


@pytest.mark.parametrize(("n", "discordant"), [(50, 0.3), (250, 0.1), (1000, 0.04)])
def test_the_smallest_drop_is_shown_in_four_of_five_cases(n: int, discordant: float) -> None:
    drop = smallest_detectable(n, discordant)
    rng = np.random.default_rng(n)
    changes = max(discordant, drop)
    drawn = rng.multinomial(n, [(changes - drop) / 2, (changes + drop) / 2, 1 - changes], size=3000)
    shown = np.mean([_p(won, lost) <= 0.05 and lost > won for won, lost, _ in drawn])
    assert shown == pytest.approx(0.8, abs=SURE * math.sqrt(0.16 / 3000))


def test_more_documents_show_smaller_drops() -> None:
    drops = [smallest_detectable(n, 0.1) for n in (50, 100, 1000, 10_000)]
    assert drops == sorted(drops, reverse=True) and drops[-1] < 0.01
    assert smallest_detectable(5, 0.5) == math.inf and smallest_detectable(6, 0.5) < 1, "0.5^5 * 2 is above 5%"
    assert smallest_detectable(0, 0.5) == math.inf
    assert smallest_detectable(100, 0.0) == pytest.approx(0.0779, abs=5e-4), "six losses, with a chance of 80%"


def test_the_smallest_drop_of_a_mean_is_cohens() -> None:
    """Cohen (1988): 34 pairs show an effect of half a standard deviation."""
    assert smallest_detectable_mean(34, 2.0) == pytest.approx(1.0, abs=0.01)
    assert smallest_detectable_mean(1, 0.1) == math.inf and smallest_detectable_mean(9, 0.0) == 0.0


# Simulation. Resamples are fewer than in use, which makes the interval noisier and no wider.


@cache
def _p(won: int, lost: int) -> float:
    return mcnemar(won, lost)


def _within(share: float, lo: float, hi: float) -> None:
    assert lo <= share <= hi, f"{share:.3f} is not between {lo} and {hi}"


@pytest.mark.slow
@pytest.mark.parametrize(("n", "replicates"), [(50, 2000), (200, 600)])
def test_coverage_for_right_and_wrong(n: int, replicates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of all difficulties, the second run better by five points on average: the answers of the two runs go
    together as those of checkpoints do."""
    monkeypatch.setattr(intervals, "RESAMPLES", 499)
    rng = np.random.default_rng(n)
    cached = lru_cache(maxsize=None)(_shares)
    covered = 0
    for _ in range(replicates):
        ease = rng.beta(0.7, 0.7, n)
        luck = rng.random((2, n))
        first, second = luck[0] < ease, luck[1] < ease + 0.1 * (1 - ease)
        result = cached(int((second & ~first).sum()), int((first & ~second).sum()), n)
        assert result.lo is not None and result.hi is not None
        covered += result.lo <= 0.05 <= result.hi
    _within(covered / replicates, 0.93, 0.97)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "replicates"), [(50, 800), (200, 400)])
def test_coverage_and_size_for_graded_values(n: int, replicates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Means of four answers: most documents change a little. Half of the replicates have no difference to find."""
    monkeypatch.setattr(intervals, "RESAMPLES", 399)
    monkeypatch.setattr(paired, "RESAMPLES", 99)
    rng = np.random.default_rng(n + 1)
    covered = rejected = nulls = 0
    for at in range(replicates):
        gain = 0.1 * (at % 2)
        ease = rng.beta(0.7, 0.7, n)
        first, second = rng.binomial(4, ease) / 4, rng.binomial(4, ease + gain * (1 - ease)) / 4
        result = paired_difference(list(first), list(second))
        assert result.lo is not None and result.hi is not None and result.p is not None
        covered += result.lo <= gain / 2 <= result.hi
        if not gain:
            nulls += 1
            rejected += result.p <= 0.05
    _within(covered / replicates, 0.93, 0.97)
    assert rejected / nulls == pytest.approx(0.05, abs=SURE * math.sqrt(0.05 * 0.95 / nulls))


@pytest.mark.parametrize(
    ("n", "won", "lost"),
    [(20, 0.05, 0.05), (50, 0.01, 0.01), (50, 0.05, 0.02), (200, 0.003, 0.01)],
)
def test_few_changes_are_covered_too(n: int, won: float, lost: float) -> None:
    """Where the bootstrap covers as little as 62% (see ``paired_tests``): never below 93%, if too wide."""
    drawn = np.random.default_rng(n).multinomial(n, [won, lost, 1 - won - lost], size=4000)
    cached = lru_cache(maxsize=None)(_shares)
    result = [cached(int(a), int(b), n) for a, b, _ in drawn]
    covered = np.mean(
        [item.lo <= won - lost <= item.hi for item in result if item.lo is not None and item.hi is not None]
    )
    assert len(result) == 4000 and covered >= 0.93


def _families(rng: np.random.Generator, n: int, changes: float, size: int) -> list[list[float]]:
    """2000 families of McNemar tests where nothing differs."""
    total = rng.binomial(n, changes, (2000, size))
    won = rng.binomial(total, 0.5)
    return [[_p(int(w), int(t - w)) for w, t in zip(*row, strict=True)] for row in zip(won, total, strict=True)]


@pytest.mark.parametrize(("n", "changes"), [(50, 0.2), (200, 0.2), (1000, 0.3)])
def test_mcnemar_rejects_no_more_than_it_says(n: int, changes: float) -> None:
    """The exact test is conservative: below 5%, and not by all of it."""
    result = [p for family in _families(np.random.default_rng(n), n, changes, 2) for p in family]
    size = sum(p <= 0.05 for p in result) / len(result)
    _within(size, 0.01, 0.05 + SURE * math.sqrt(0.05 * 0.95 / len(result)))


def test_holm_holds_the_rate_of_the_whole_family() -> None:
    rng = np.random.default_rng(7)
    uniform = [list(row) for row in rng.random((2000, 10))]
    assert np.mean([min(row) <= 0.05 for row in uniform]) > 0.3, "ten tests without adjustment"
    error = SURE * math.sqrt(0.05 * 0.95 / 2000)
    assert _any(uniform) == pytest.approx(1 - (1 - 0.005) ** 10, abs=error)
    assert _any(_families(rng, 200, 0.2, 10)) <= 0.05 + error


def _any(families: Sequence[Sequence[float]]) -> float:
    """The share of families in which anything is rejected after adjustment."""
    return float(np.mean([any(p is not None and p <= 0.05 for p in holm(family)) for family in families]))


@pytest.mark.slow
@pytest.mark.parametrize("n", [10, 60])
def test_coverage_of_a_single_graded_score(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Student's t for ten documents, the bootstrap for more (:func:`dare_bench.analysis.intervals.interval`)."""
    monkeypatch.setattr(intervals, "RESAMPLES", 399)
    rng = np.random.default_rng(n)
    covered = 0
    for _ in range(600):
        result = interval(list(rng.binomial(4, rng.beta(2, 2, n)) / 4))
        assert result.lo is not None and result.hi is not None
        covered += result.lo <= 0.5 <= result.hi
    _within(covered / 600, 0.93, 0.97)


def test_all_pairs_at_once_are_tested_as_each_alone() -> None:
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 2, (6, 40)).astype(float)
    p = all_pairs([rows.tolist()], [1.0])
    # Two tasks that weigh by their sizes are one.
    assert p == all_pairs([rows[:, :15].tolist(), rows[:, 15:].tolist()], [15 / 40, 25 / 40])
    graded = np.concatenate([rows[:3], rng.random((3, 40))])
    for values in (rows, graded):
        p = all_pairs([values.tolist()], [1.0])
        for i, item in enumerate(values):
            for j, other in enumerate(values):
                assert p[i][j] == pytest.approx(paired_difference(item, other).p, abs=1e-12)


@pytest.mark.parametrize("changed", [2, 6, 10, 20, 40])
def test_means_of_tasks_are_tested_by_the_error_behind_their_interval(changed: int) -> None:
    """The interval of the difference ends at 0 where p is 0.05."""
    base = np.random.default_rng(3).random(200)
    other = base.copy()
    other[:changed] = (1 + base[:changed]) / 2
    other[changed : changed + 2] = 0  # not all one way
    alone = paired_difference(base, other)
    p = all_pairs([[base.tolist(), other.tolist()], [base.tolist()] * 2], [1.0, 0.0])
    assert p[0][1] == p[1][0] and p[0][0] == 1.0
    assert alone.lo is not None and alone.hi is not None and (p[0][1] <= 0.05) == (alone.lo > 0 or alone.hi < 0)


def test_equal_models_are_seldom_told_apart() -> None:
    """The mean of three small tasks, between models of which each answer is right one time in ten."""
    rng = np.random.default_rng(4)
    result = []
    for _ in range(40):
        strata = [(rng.random((12, n)) < 0.1).astype(float).tolist() for n in (20, 40, 60)]
        p = np.asarray(all_pairs(strata, [1 / 3] * 3))
        result.append(np.mean(p[np.triu_indices(12, 1)] <= 0.05))
    assert np.mean(result) <= 0.05


# Differences of drawn likelihoods


@pytest.mark.parametrize(("gain", "claims"), [(0.0, 0.1), (0.5, 1.0)])
def test_differences_hold_documents_and_draws(gain: float, claims: float) -> None:
    """Two checkpoints on 300 documents, each with its own noise: 100 comparisons hold the difference without noise."""
    rng, held, claimed = np.random.default_rng(0), 0, 0
    truth = norm.cdf(0.5 + gain) - norm.cdf(0.5)
    for _ in range(100):
        shared = rng.normal(0.5, 1, 300)
        noisy = [shared + by + 0.5 * rng.standard_normal(300) for by in (0.0, gain)]
        right = [(margins > 0).astype(float) for margins in noisy]
        corrected = [2 * y - norm.cdf(margins / 0.5) for y, margins in zip(right, noisy, strict=True)]
        documents = paired_difference(*right)
        both = paired.with_draws(documents, *corrected)
        assert both.lo <= documents.lo and both.hi >= documents.hi and both.p >= documents.p
        held += both.lo <= truth <= both.hi
        claimed += both.p <= 0.05
        assert (both.p <= 0.05) == (not both.lo <= 0 <= both.hi) or both.p > documents.p
    assert held / 100 >= 0.93
    assert claimed / 100 <= claims and (gain == 0 or claimed / 100 > 0.8)


def test_opposed_corrections_claim_nothing() -> None:
    documents = paired_difference([0.0] * 30 + [1.0] * 30, [1.0] * 20 + [0.0] * 10 + [1.0] * 30)
    both = paired.with_draws(documents, [2.0] * 20 + [1.0] * 40, [0.5] * 20 + [1.0] * 40)
    assert documents.p < 0.01 and both.p == 1.0 and both.lo < 0 < both.hi
