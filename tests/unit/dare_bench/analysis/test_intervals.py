"""Intervals against published values, exact coverage, and the cases where nothing can be said."""

from __future__ import annotations

import functools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.stats import norm

from dare_bench.analysis.intervals import (
    Interval,
    anytime,
    confidence_intervals,
    draw_noise,
    from_stderr,
    group_interval,
    interval,
    mean_of,
    ratio_interval,
    wilson,
    wilson_bounds,
    with_draws,
)
from dare_bench.analysis.parallelism import aup, kept_points


@pytest.mark.parametrize(
    ("successes", "n", "lo", "hi"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (50, 100, 0.4038, 0.5962),
    ],
)
def test_wilson_known_values(successes: int, n: int, lo: float, hi: float) -> None:
    result = interval([1.0] * successes + [0.0] * (n - successes))
    assert result.method == "Wilson" and result.n == n
    assert (result.lo, result.hi) == (pytest.approx(lo, abs=5e-5), pytest.approx(hi, abs=5e-5))


def test_wilson_holds_its_level() -> None:
    """Exact coverage over the binomial distribution, not a simulation."""
    from scipy.stats import binom

    for n, p in ((50, 0.3), (100, 0.5), (200, 0.9)):
        covered = sum(
            binom.pmf(k, n, p) for k in range(n + 1) if (w := wilson(k, n)).lo is not None and w.lo <= p <= (w.hi or 0)
        )
        assert 0.93 < covered < 0.97


@pytest.mark.parametrize("draw", ["rare", "even", "frequent", "fractions"])
def test_anytime_intervals_hold_wherever_one_stops(draw: str) -> None:
    """A sequence misses if any of its intervals does. Wilson's intervals, stopped as soon as they are narrow or at the
    worst time, do not hold their level."""
    rng = np.random.default_rng(0)
    chance = {"rare": 0.05, "even": 0.5, "frequent": 0.9, "fractions": 0.3}[draw]
    missed = wilson_missed = 0
    for _ in range(100):
        if draw == "fractions":
            values = rng.beta(0.3, 0.7, 1000)
        else:
            values = (rng.random(1000) < chance).astype(float)
        looks = [anytime(values[:n].tolist()) for n in range(50, 1001, 50)]
        missed += not all(each.lo is not None and each.lo <= chance <= (each.hi or 0) for each in looks)
        bounds = [wilson_bounds(float(values[:n].mean()), n, 0.95) for n in range(50, 1001, 50)]
        wilson_missed += not all(lo <= chance <= hi for lo, hi in bounds)
    assert missed <= 5 and (wilson_missed > 15 or draw == "fractions")


def test_anytime_intervals_are_not_much_wider_than_wilsons() -> None:
    for share in (0.5, 0.9):
        for n in (300, 1000, 10_000):
            hits = round(share * n)
            anytime_, wilson_ = anytime([1.0] * hits + [0.0] * (n - hits)), wilson(hits, n)
            assert anytime_.lo is not None and anytime_.hi is not None and wilson_.lo is not None
            assert 1.5 < (anytime_.hi - anytime_.lo) / ((wilson_.hi or 0) - wilson_.lo) < 1.75
    assert anytime([]).lo is None and (anytime([1.0]).lo, anytime([0.0] * 60).lo, anytime([1.0] * 60).hi) == (0, 0, 1)


def test_booleans_count_as_zero_and_one() -> None:
    assert interval([True, False, True]) == interval([1.0, 0.0, 1.0])


def test_student_known_value() -> None:
    result = interval([1, 2, 3, 4, 5])
    assert result.method == "Student t"
    assert (result.lo, result.hi) == (pytest.approx(1.0368, abs=1e-4), pytest.approx(4.9632, abs=1e-4))


def test_bootstrap_is_close_to_t_where_both_hold_and_leans_where_the_data_do() -> None:
    even = [i / 99 for i in range(100)]
    result = interval(even)
    assert result.method == "BCa bootstrap"
    assert result.lo == pytest.approx(0.442, abs=0.006) and result.hi == pytest.approx(0.558, abs=0.006)
    skewed = interval([0.01 * (i % 5) for i in range(55)] + [1.0] * 5 + [0.5])
    mean = (sum(0.01 * (i % 5) for i in range(55)) + 5.5) / 61
    assert skewed.lo is not None and skewed.hi is not None
    assert skewed.hi - mean > 1.1 * (mean - skewed.lo)


def test_bootstrap_is_repeatable() -> None:
    values = [((i * 7919) % 101) / 101 for i in range(60)]
    assert interval(values) == interval(values)


def test_large_samples_take_no_bootstrap() -> None:
    assert interval([(i % 7) / 7 for i in range(5000)]).method == "Student t"


@pytest.mark.parametrize(("values", "n"), [([], 0), ([0.5], 1), ([0.5] * 3, 3), ([0.0, 5e-324, 1e-200], 3)])
def test_nothing_is_claimed_where_nothing_is_known(values: list[float], n: int) -> None:
    assert interval(values) == Interval("none", 0.95, None, None, n)


def test_equal_zeros_and_ones_still_have_an_interval() -> None:
    assert interval([1.0] * 20).lo == pytest.approx(0.8389, abs=1e-4)


def test_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        interval([0.1, float("nan")])


def test_ratio_draws_whole_documents() -> None:
    """Ten documents of ten equal values each know no more than ten values do."""
    clustered = ratio_interval([10.0, 0.0] * 5, [10.0] * 10)
    alone = interval([1.0, 0.0] * 50)
    assert clustered.lo is not None and clustered.hi is not None and alone.lo is not None and alone.hi is not None
    assert clustered.hi - clustered.lo > 2 * (alone.hi - alone.lo)
    assert ratio_interval([1.0], [2.0]).method == "none"
    assert ratio_interval([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).method == "none"


def test_normal_from_a_standard_error() -> None:
    result = from_stderr(0.5, 0.1, 40)
    assert (result.lo, result.hi) == (pytest.approx(0.304, abs=1e-3), pytest.approx(0.696, abs=1e-3))
    assert from_stderr(0.0, 0.0, 40) == Interval("none", 0.95, None, None, 40)


def test_no_interval_leaves_the_range_of_its_metric() -> None:
    result = from_stderr(0.95, 0.1, 40)
    assert result.within(0.0, 1.0) == Interval("normal", 0.95, result.lo, 1.0, 40)
    nothing = Interval("none", 0.95, None, None, 1)
    assert nothing.within(0.0, 1.0) == nothing


@pytest.mark.parametrize(
    ("sizes", "shares", "least"),
    [([10] * 5, [0.02] * 5, 0.91), ([10] * 5, [0.1] * 5, 0.91), ([100] * 57, [0.01] * 57, 0.91),
     ([20, 200], [0.05, 0.02], 0.91), ([3] * 4, [0.3] * 4, 0.91), ([50] * 27, [i / 28 for i in range(1, 28)], 0.91),
     ([10, *[1000] * 10], [0.5, *[0.99] * 10], 0.91), ([10, 1000], [0.5, 0.99], 0.91),
     ([30, 1319, 10042], [0.5, 0.95, 0.95], 0.91), ([3, 23], [0.951, 0.999], 0.8)],
)  # fmt: skip
@pytest.mark.parametrize("by_size", [True, False])
def test_groups_hold_their_level_where_right_answers_are_rare_or_tasks_small(
    sizes: list[int], shares: list[float], least: float, by_size: bool
) -> None:
    """And none is narrower than MOVER's. Wilson's effective size alone covers 66% of the seventh by tasks, MOVER alone
    86% of the third. The last has too few documents for Wilson's interval itself."""
    weights = [n / sum(sizes) if by_size else 1 / len(sizes) for n in sizes]
    true = sum(weight * share for weight, share in zip(weights, shares, strict=True))
    covered, draws = 0, 400
    for right in np.random.default_rng(1).binomial(sizes, shares, size=(draws, len(sizes))).tolist():
        parts = [_wilson(k, n) for k, n in zip(right, sizes, strict=True)]
        values = [k / n for k, n in zip(right, sizes, strict=True)]
        result, (_, mover) = group_interval(parts, values, weights), mean_of(parts, values, weights)
        assert (
            result is not None and result.lo is not None and result.hi is not None and 0 <= result.lo <= result.hi <= 1
        )
        assert mover is not None and mover.lo is not None and mover.hi is not None
        assert result.lo <= max(mover.lo, 0) and result.hi >= min(mover.hi, 1)
        covered += result.lo <= true <= result.hi
    assert covered / draws >= least


_wilson = functools.cache(wilson)


def test_a_group_of_other_values_goes_by_the_mover_rule() -> None:
    item, other = Interval("BCa bootstrap", 0.95, 0.3, 0.6, 50), wilson(5, 10)
    result = group_interval([item, other], [0.4, 0.5], [0.75, 0.25])
    assert result is not None and (result.method, result.n) == ("MOVER", 60)
    assert result.hi == pytest.approx(0.425 + ((0.75 * 0.2) ** 2 + (0.25 * ((other.hi or 0) - 0.5)) ** 2) ** 0.5)
    assert group_interval([item, Interval("none", 0.95, None, None, 1)], [0.4, 0.6], [0.5, 0.5]) is None


def test_mean_of_independent_estimates() -> None:
    item = from_stderr(0.4, 0.03, 100)
    other = from_stderr(0.6, 0.04, 100)
    mean, result = mean_of([item, other], [0.4, 0.6])
    assert mean == pytest.approx(0.5)
    assert result is not None and result.hi == pytest.approx(0.5 + 1.95996 * 0.025, abs=1e-5)
    worst = [wilson(0, 4), wilson(0, 4)]
    _, result = mean_of(worst, [0.0, 0.0])
    assert result is not None and result.lo == 0.0 and result.hi == pytest.approx(0.4899 / 2**0.5, abs=1e-4)
    assert mean_of([item, Interval("none", 0.95, None, None, 1)], [0.4, 0.6])[1] is None


def test_import_is_cheap() -> None:
    heavy = ("scipy", "statsmodels", "numpy", "torch")
    code = f"import sys, dare_bench.analysis.paired_tests; print(any(m in sys.modules for m in {heavy}))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize(("mean", "noise", "n"), [(0.5, 0.5, 200), (1.0, 0.3, 50), (1.0, 0.5, 1000), (2.0, 0.5, 200)])
def test_nested_intervals_hold_the_score_without_noise(mean: float, noise: float, n: int, scale: float) -> None:
    """Margins of documents (right above 0) with a known spread, and draws that add noise: 400 runs on other documents.
    Wilson's interval of the noisy score misses the score without noise where it is higher."""
    rng = np.random.default_rng(0)
    truth, plain, nested = norm.cdf(mean), 0, 0
    for _ in range(400):
        margins = scale * (rng.normal(mean, 1, n) + noise * rng.standard_normal(n))
        right = (margins > 0).astype(float)
        documents = interval(right)
        both = with_draws(documents, right, norm.cdf(margins / (scale * noise)))
        assert both.lo <= documents.lo and both.hi >= documents.hi
        plain += documents.lo <= truth <= documents.hi
        nested += both.lo <= truth <= both.hi
    assert nested / 400 >= 0.92
    assert n < 1000 or plain / 400 < 0.5


def test_draws_move_a_score_as_much_as_their_noise_says() -> None:
    """The standard deviation over seeds, against runs of the same documents with other draws."""
    rng = np.random.default_rng(0)
    margins = rng.normal(0.5, 1, 300)
    runs = [margins + 0.5 * rng.standard_normal(300) for _ in range(200)]
    stated = [draw_noise(norm.cdf(run / 0.5)).sd for run in runs]
    assert np.mean(stated) == pytest.approx(np.std([np.mean(run > 0) for run in runs]), rel=0.1)
    assert draw_noise([0.0, 0.05, 0.5, 0.96]).undecided == 2


def test_intervals_of_drawn_likelihoods_are_nested_and_say_so() -> None:
    rows = [{"metrics": ["acc"], "acc": float(i % 2), "filter": "none", "redrawn": {"acc": 0.5}} for i in range(40)]
    results = {"results": {"t": {"acc,none": 0.5}}}
    ci = confidence_intervals(results, {"t": rows})["t"]["acc,none"]
    exact = confidence_intervals(results, {"t": [{**row, "redrawn": {}} for row in rows]})["t"]["acc,none"]
    assert (ci.method, exact.method) == ("Wilson and draws", "Wilson") and exact.draws is None
    assert ci.lo < exact.lo and ci.hi > exact.hi and ci.draws is not None and ci.draws.undecided == 40
    assert with_draws(interval([1.0]), [1.0], [0.5]).method == "Wilson"  # one document tells nothing of the spread


# -- AUP by hand, and what it does with points that fall off -----------------------------------------------------------


def test_a_method_of_one_token_per_forward_has_its_accuracy() -> None:
    assert aup([(1.0, 72.55)], 80.0) == 72.55


def test_two_budgets_by_hand() -> None:
    """d3LLM-LLaDA on GSM8K as published (data_llada.yaml), among methods whose best accuracy is 74.98."""
    first = 74.02 * math.exp(-3 * (1 - 74.02 / 74.98))
    second = 73.09 * math.exp(-3 * (1 - 73.09 / 74.98))
    points = [(9.11, 73.09), (1.0, 74.02)]
    assert aup(points, 74.98) == pytest.approx(74.02 + 8.11 * (first + second) / 2)
    assert aup(points, 90.0) < aup(points, 74.98) < aup(points, 74.02)


def test_the_best_accuracy_weighs_fully_and_nothing_weighs_more() -> None:
    assert aup([(1.0, 50.0), (3.0, 50.0)], 50.0) == 150.0 == aup([(1.0, 50.0), (3.0, 50.0)], 40.0)


def test_budgets_that_lose_more_than_five_points_are_left_out() -> None:
    points = [(1.0, 80.0), (2.0, 75.0), (3.0, 74.9), (4.0, 76.0)]
    assert kept_points(points[::-1]) == [points[0], points[1], points[3]]
    assert aup(points, 80.0) == aup([points[0], points[1], points[3]], 80.0)


def test_nothing_right_has_no_area_and_no_points_are_refused() -> None:
    assert aup([(1.0, 0.0), (2.0, 0.0)], 0.0) == 0.0
    with pytest.raises(ValueError, match="at least one budget"):
        aup([], 50.0)
