"""AUP by hand, and what it does with points that fall off."""

from __future__ import annotations

import math

import pytest

from dare_bench.analysis.parallelism import aup, kept_points


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
