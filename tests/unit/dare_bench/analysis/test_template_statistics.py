"""Decoders under several templates: a planted reversal is found, no other is, and intervals cover."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dare_bench.analysis import intervals
from dare_bench.analysis.template_statistics import (
    adjust,
    crossed_interval,
    decoder_pairs,
    decoder_scores,
    ranking_agreement,
)


def _answers(rng: np.random.Generator, base_DT: np.ndarray, n: int) -> list[list[list[float]]]:
    """Values of 0 and 1 of decoders (D), templates (T) and documents: documents differ in difficulty, for all decoders
    alike, and each template makes other documents difficult."""
    document_N, both_TN = rng.normal(size=n), rng.normal(0, 0.5, (base_DT.shape[1], n))
    noise_DTN = rng.normal(size=(*base_DT.shape, n))
    return (base_DT[:, :, None] + document_N + both_TN + noise_DTN > 0).astype(float).tolist()


def _scores(base_DT: np.ndarray) -> np.ndarray:
    """The expected scores of :func:`_answers`."""
    return ndtr(base_DT / 1.5)


def _reversals(base_DT: np.ndarray, n: int, runs: int) -> list[list[bool]]:
    """For each simulation and pair of decoders: is a reversal reported?"""
    rng = np.random.default_rng(1)
    return [[pair.is_reversed for pair in adjust(decoder_pairs(_answers(rng, base_DT, n)))] for _ in range(runs)]


def test_a_planted_reversal_is_found_and_only_it() -> None:
    """The first two decoders change places under the third template: 20 points each way, 300 documents."""
    found = _reversals(np.array([[0.8, 0.5, 0.0], [0.0, 0.4, 0.8], [-1.0, -1.0, -1.0]]), 300, 60)
    assert sum(row[0] for row in found) >= 57
    assert not any(row[1] or row[2] for row in found)


@pytest.mark.parametrize("gap", [0.0, 0.15], ids=["equal decoders", "one ranking"])
def test_no_reversal_is_reported_where_there_is_none(gap: float) -> None:
    """Without Holm's adjustment 15 of 100 simulations of equal decoders have one."""
    base_DT = np.linspace(-0.4, 0.4, 8) + gap * np.arange(5)[:, None]
    reported = [any(row) for row in _reversals(base_DT, 150, 100)]
    assert sum(reported) <= 0.05 * len(reported)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "templates", "spread"), [(100, 3, 0.2), (300, 5, 0.2), (100, 3, 0.0)])
def test_coverage_of_the_intervals(monkeypatch: pytest.MonkeyPatch, n: int, templates: int, spread: float) -> None:
    """200 simulations of four decoders; docs/compare.md has more of them."""
    monkeypatch.setattr(intervals, "RESAMPLES", 499)
    rng, runs, level, gap = np.random.default_rng(2), 200, -0.2, 0.2
    covered = np.zeros(4)
    for _ in range(runs):
        base_DT = level + gap * np.arange(4)[:, None] + rng.normal(0, spread, templates)
        base_DT = base_DT + rng.normal(0, spread, (4, templates))
        values, true_DT = _answers(rng, base_DT, n), _scores(base_DT)
        own = decoder_scores(values[0])
        agreement = ranking_agreement(decoder_pairs(values))
        assert agreement is not None
        signs = np.sign([true_DT[a] - true_DT[b] for a, b in combinations(range(4), 2)])
        tau = np.mean([np.mean(signs[:, s] * signs[:, t]) for s, t in combinations(range(templates), 2)])
        such = ndtr(level / np.sqrt(1.5**2 + 2 * spread**2))
        for at, (found, true) in enumerate([
            (own.documents, true_DT[0].mean()), (own.templates_too, such), (own.worst_interval, true_DT[0].min()),
            (agreement, tau),
        ]):  # fmt: skip
            assert found.lo is not None and found.hi is not None
            covered[at] += found.lo - 1e-9 <= true <= found.hi + 1e-9
    assert (covered / runs >= [0.91, 0.9, 0.94, 0.97]).all(), covered / runs


def test_the_worst_case_of_a_loss_is_the_highest() -> None:
    values = [[1.0, 2.0, 4.0] * 10, [3.0, 5.0, 6.0] * 10]
    gains, losses = decoder_scores(values), decoder_scores(values, lower_is_better=True)
    assert (gains.worst, losses.worst) == (0, 1) and gains.mean == losses.mean == 3.5
    assert losses.worst_interval.lo is not None and losses.worst_interval.lo < losses.scores[1]
    pair, mirrored = (decoder_pairs([values, values[::-1]], lower_is_better=lower)[0] for lower in (False, True))
    assert pair.gains == tuple(-gain for gain in mirrored.gains) and (pair.ahead, pair.behind) == (0.5, 0.5)


def test_the_crossed_interval_is_that_of_the_analysis_of_variance() -> None:
    """Two templates that differ by a constant: the variance of their mean is that of the templates' means, and the
    documents' beside it."""
    first = [0.0, 1.0, 2.0, 3.0]
    found = crossed_interval([first, [value + 10 for value in first]])
    total, degrees = 4 * 50 + 2 * 5 / 3, (4 * 50 + 2 * 5 / 3) ** 2 / ((4 * 50) ** 2 / 1 + (2 * 5 / 3) ** 2 / 3)
    assert found.lo is not None and found.hi is not None
    assert found.hi - found.lo == pytest.approx(2 * stats.t.ppf(0.975, degrees) * np.sqrt(total / 8))
    assert crossed_interval([first]).lo is None


def test_tau_counts_ties_as_zero_and_its_interval_holds_it() -> None:
    same = [[1.0, 0.0] * 20, [1.0, 0.0] * 20]
    tied = ranking_agreement(decoder_pairs([same, same]))
    assert tied is not None and (tied.mean, tied.lo, tied.hi) == (0.0, -1.0, 1.0)
    better = [[1.0] * 40, [1.0] * 40]
    clear = ranking_agreement(decoder_pairs([same, better]))
    assert clear is not None and (clear.mean, clear.lo, clear.hi) == (1.0, 1.0, 1.0)
    assert ranking_agreement([]) is None
