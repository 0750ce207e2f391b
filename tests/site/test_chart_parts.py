"""What charts are made of: the right front, scales and their ticks, labels, shapes and colors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_bench.formatting import compact
from dare_bench.leaderboards.charts import frontier, frontier_table
from dare_bench.leaderboards.charts.axes import linear, logarithmic, tick_labels
from dare_bench.leaderboards.charts.frame import CLASSES, classes, shape
from dare_bench.leaderboards.charts.labels import HEIGHT, fitting, spread, width
from dare_bench.leaderboards.rendering import HERE
from dare_bench.runs.text import shorten


@dataclass(frozen=True)
class XY:
    x: float | None
    y: float | None


# Few values, so that ties and equal points come up often; now and then one that is no number.
numbers = st.integers(0, 40).map(
    lambda n: float(n % 6) if n < 36 else (None, math.nan, math.inf, -math.inf, None)[n - 36]
)
pairs = st.lists(st.builds(XY, numbers, numbers), max_size=25)
sides = st.tuples(st.sampled_from(["left", "right"]), st.sampled_from(["up", "down"]))


def dominates(a: XY, b: XY, better_x: str, better_y: str) -> bool:
    """By the book: at least as good in both and better in one."""
    dx = b.x - a.x if better_x == "left" else a.x - b.x
    dy = a.y - b.y if better_y == "up" else b.y - a.y
    return dx >= 0 and dy >= 0 and (dx > 0 or dy > 0)


def placed(points: list[XY]) -> list[XY]:
    return [p for p in points if p.x is not None and p.y is not None and math.isfinite(p.x) and math.isfinite(p.y)]


def test_who_only_ties_in_score_at_a_higher_cost_is_not_on_the_front():
    points = [XY(1.0, 0.5), XY(2.0, 0.5), XY(1.0, 0.5), XY(2.0, 0.4), XY(3.0, 0.6)]
    assert frontier(points) == [points[0], points[2], points[4]]


@given(pairs, sides)
def test_the_front_is_who_nobody_dominates(points, side):
    expected = [p for p in placed(points) if not any(dominates(q, p, *side) for q in placed(points))]
    result = frontier(points, *side)
    assert sorted(map(id, result)) == sorted(map(id, expected))
    assert [p.x for p in result] == sorted(p.x for p in result)


@given(pairs, sides)
def test_the_table_of_the_front_names_all_that_each_member_dominates(points, side):
    rows = frontier_table(points, *side)
    assert sorted(id(point) for point, _ in rows) == sorted(map(id, frontier(points, *side)))
    for point, dominated in rows:
        expected = [q for q in placed(points) if dominates(point, q, *side)]
        assert list(map(id, dominated)) == list(map(id, expected))


finite = st.floats(-1e9, 1e9, allow_nan=False).map(lambda value: round(value, 6))


@given(st.lists(finite, max_size=30))
def test_a_linear_scale_holds_its_values_between_ticks_that_can_be_told_apart(values):
    scale = linear(values, 0, 100)
    slack = 1e-8 * (scale.hi - scale.lo)  # nothing that an eye could see
    assert all(scale.lo - slack <= value <= scale.hi + slack for value in values)
    assert (scale.ticks[0], scale.ticks[-1]) == (scale.lo, scale.hi) and 2 <= len(scale.ticks) <= 13
    assert scale(scale.lo) == 0 and scale(scale.hi) == 100
    assert len(set(tick_labels(scale.ticks))) == len(scale.ticks)


@given(st.lists(st.floats(-5, 1e12).map(lambda value: value if value > 1e-6 else min(value, 0.0)), max_size=30))
def test_a_log_scale_holds_what_is_above_zero(values):
    scale = logarithmic(values, 0, 100)
    above = [value for value in values if value > 0]
    assert all(0 < scale(value) < 100 for value in above)
    assert 2 <= len(scale.ticks) <= 8 and all(scale.lo <= tick <= scale.hi for tick in scale.ticks)
    assert list(scale.ticks) == sorted(set(scale.ticks)) and len(set(tick_labels(scale.ticks))) == len(scale.ticks)
    if len(above) > 1 and max(above) > 1.001 * min(above):
        middle = math.sqrt(max(above) * min(above))
        assert scale(middle) == pytest.approx((scale(max(above)) + scale(min(above))) / 2)


def test_shares_stay_between_0_and_100_percent():
    scale = linear([0.02, 0.99], 0, 1, share=True)
    assert (scale.lo, scale.hi) == (0.0, 1.0)
    assert tick_labels(scale.ticks, percent=True) == ["0", "20", "40", "60", "80", "100"]
    equal = linear([1.0, 1.0], 0, 1, share=True)
    assert equal.hi == 1.0 and 0.9 <= equal.lo < 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (10, "10"), (100, "100"), (999.9, "1k"), (2000, "2k"), (1500, "1.5k"), (2.5e6, "2.5M"), (3e9, "3B"),
        (0.25, "0.25"), (0, "0"), (-4.5, "−4.5"), (7.3e-7, "7.3e-7"), (8e13, "8e4B"), (19.049, "19"),
    ],
)  # fmt: skip
def test_numbers_are_written_as_people_write_them(value, text):
    assert compact(value) == text


def test_ticks_that_lie_close_get_the_figures_they_need():
    assert tick_labels([10000, 10001, 10002]) == ["10k", "10.001k", "10.002k"]


def test_labels_fit_and_none_are_equal():
    names, details = ["WIDE-CHECKPOINT-" * 4] * 3, ["a, steps 8", "a, steps 16", "a, steps 16"]
    labels = fitting(names, details, 400, 30)
    assert len(set(labels)) == 3 and all(width(label) * 23 / 12 <= 400 for label in labels)
    assert "steps 8" in labels[0] and "steps 16" in labels[1]
    assert fitting(["short"], [""], 400, 30) == ["short"]


def test_long_names_keep_both_ends():
    assert shorten("tiny-llada-base-sft-dare_sudoku-rows=6000-seed=0", 20) == "tiny-llada-…0-seed=0"
    assert shorten("short") == "short" and len(shorten("x" * 500)) == 26 and "\u202e" not in shorten("a\u202eb")


@given(st.lists(st.floats(0, 300), max_size=12))
def test_labels_at_line_ends_keep_their_distance_and_stay_near(places):
    built = spread(places, HEIGHT, 0, 300)
    kept = sorted(height for height in built if height is not None)
    assert all(b - a >= HEIGHT - 1e-6 for a, b in pairwise(kept))
    for place, height in zip(places, built, strict=True):
        assert height is None or (abs(height - place) <= 1.5 * HEIGHT + 1e-6 and -1e-6 <= height <= 300 + 1e-6)
    if len(places) == 1:
        assert built == places


COLORS = 8
"""``--series-1`` to ``--series-8`` in charts.css."""


def color(number: int) -> int:
    """The series color of a class in charts.css: each round of eight shapes starts three colors further on."""
    return (number + 3 * (number // 8)) % COLORS + 1


def test_families_differ_in_shape_and_color_whatever_the_order_of_the_points():
    names = [f"family-{at:02}" for at in range(CLASSES)]
    built = classes(reversed(names))
    assert built == classes(names)
    looks = {(shape(number), color(number)) for number in built.values()}
    assert len(looks) == CLASSES
    assert len({shape(number) for number in range(8)}) == len({color(number) for number in range(8)}) == 8


def theme(name: str, dark: bool) -> dict[str, str]:
    """A sheet's colors by name, in one theme."""
    sheet = (HERE / "static" / name).read_text()
    result = re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\);", sheet)
    return {color: values[dark] for color, *values in result}


def contrast(first: str, second: str) -> float:
    """WCAG 2.2's contrast ratio."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_marks_and_words_stand_out_from_the_paper(dark):
    board, series = theme("site.css", dark), theme("charts.css", dark)
    assert set(series) == {*(f"series-{at}" for at in range(1, COLORS + 1)), "faint"}
    for paper in (board["card"], board["paper"]):
        assert {name: contrast(value, paper) for name, value in series.items() if contrast(value, paper) < 3} == {}
        assert contrast(board["soft"], paper) >= 4.5 and contrast(board["ink"], paper) >= 4.5


def test_the_sheet_gives_each_class_its_color():
    sheet = Path(HERE / "static" / "charts.css").read_text()
    for number in range(CLASSES):
        rules = re.findall(rf"\.chart \.f{number}(?=[ ,])[^{{}}]*\{{ --c: var\(--series-(\d)\); \}}", sheet)
        assert rules == [str(color(number))]
