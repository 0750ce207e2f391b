"""What decoders save at equal accuracy and lose at equal forwards, on documents that are drawn from known curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from require import need_package
from run_factory import make_run

from dare_bench.analysis.decoders import DecoderCurve, compare_decoders, decoder_curves
from dare_bench.errors import DareError, UsageError
from dare_bench.runs.reader import Run

N = 400


def drawn(rng: Any, budgets: list[tuple[float, float]], difficulty_D: Any) -> Any:
    """Documents at budgets of (share right, mean forwards), in an array [B, D, 3]: one is right where its difficulty is
    below the share, up to a little noise; forwards vary by a tenth."""
    rows = []
    for share, forwards in budgets:
        right_D = difficulty_D + rng.normal(0, 0.02, N) < share
        forwards_D = forwards * rng.uniform(0.9, 1.1, N)
        rows.append(np.stack([right_D.astype(float), forwards_D, np.full(N, 64.0)], axis=1))
    return np.array(rows)


def pair(seed: int, other: list[tuple[float, float]]) -> DecoderCurve:
    """A decoder with these budgets against one that needs 16, 32 and 64 forwards for 20, 40 and 60 %."""
    rng = np.random.default_rng(seed)
    difficulty_D = rng.uniform(0, 1, N)
    base = drawn(rng, [(0.2, 16), (0.4, 32), (0.6, 64)], difficulty_D)
    values = [base, drawn(rng, other, difficulty_D)]
    return decoder_curves(values, ["base", "other"], [["16", "32", "64"], [""] * len(other)], 0)[1]


def test_half_of_the_forwards_are_saved() -> None:
    (budget,) = pair(0, [(0.4, 16)]).budgets
    assert budget.saved.value == pytest.approx(50, abs=6)
    assert budget.saved.lo is not None and budget.saved.lo > 40
    assert budget.lost.value == pytest.approx(-20, abs=6), "it is better where the other has as many forwards"


def test_intervals_cover() -> None:
    """A decoder that needs 24 forwards for 40 % (32: a quarter is saved), 10 points more than the baseline has
    there: in 50 samples of documents, 95 % intervals hold the truth at least 43 times."""
    saved = lost = 0
    for seed in range(50):
        (budget,) = pair(seed, [(0.4, 24)]).budgets
        assert budget.saved.lo is not None and budget.saved.hi is not None
        assert budget.lost.lo is not None and budget.lost.hi is not None
        saved += budget.saved.lo <= 25 <= budget.saved.hi
        lost += budget.lost.lo <= -10 <= budget.lost.hi
    assert saved >= 43 and lost >= 43, (saved, lost)


def test_there_is_no_number_where_a_curve_does_not_reach() -> None:
    (few, many) = pair(0, [(0.3, 8), (0.9, 80)]).budgets
    assert few.lost.value is None and few.saved.value is not None
    assert many.saved.value is None and many.lost.value is None


def test_an_even_decoder_shows_nothing() -> None:
    (budget,) = pair(0, [(0.4, 32)]).budgets
    for estimate in (budget.saved, budget.lost):
        assert estimate.lo is not None and estimate.hi is not None and estimate.lo < 0 < estimate.hi


def test_one_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found 1; give at least two"):
        compare_decoders([Run(make_run(tmp_path, "a"))])


def test_the_command(tmp_path: Path) -> None:
    """Three budgets of the published sampler, and a strategy by its threshold."""
    need_package("lm_eval")
    import dare_bench

    for settings in ({"steps": 16}, {"steps": 4}, {"strategy": {"name": "threshold", "threshold": 0.5}}):
        fields = {"model": "tiny-llada-base", "tasks": "dare_sudoku", "limit": 12, "output_path": str(tmp_path)}
        dare_bench.evaluate(**fields, decoding=settings, progress=False)  # type: ignore[arg-type]
    runs = [Run(path) for path in sorted(tmp_path.iterdir())]
    (comparison,) = compare_decoders(runs)
    assert comparison.n == 12 and comparison.unpaired == 0
    assert [(curve.name, len(curve.budgets)) for curve in comparison.curves] == [("llada", 2), ("threshold", 1)]
    assert [budget.forwards for budget in comparison.curves[0].budgets] == [4, 16]
    (other,) = compare_decoders(runs, baseline="threshold")
    assert other.curves[other.baseline].name == "threshold"
    for wrong in ({"task": "gsm8k"}, {"baseline": "klass"}):
        with pytest.raises(DareError, match=r"klass|gsm8k"):
            compare_decoders(runs, **wrong)
