"""Values as users read them."""

from __future__ import annotations

from dare_bench.formatting import duration, p_text, plain_value, setting_text


def test_values_of_settings() -> None:
    assert [plain_value(value) for value in (None, True, [], ["a, b"])] == ["none", "yes", "none", '"a, b"']
    assert plain_value({"name": "sequential", "steps": None}) == "sequential"
    assert plain_value({"name": "threshold", "threshold": 0.9, "steps": None}) == "threshold (threshold 0.9)"
    assert plain_value({"random": True, "format_weight": 0.5}) == "random, format_weight 0.5"
    assert plain_value({}) == "none"
    assert [setting_text("reward random", value) for value in (True, False, 0.5)] == [
        "reward random", "no reward random", "reward random 0.5",
    ]  # fmt: skip


def test_p_values_in_running_text() -> None:
    values = {None: "p —", 0.00001: "p < 0.0001", 0.0033: "p = 0.0033", 0.04: "p = 0.040", 1.0: "p > 0.99"}
    assert {p: p_text(p) for p in values} == values


def test_durations() -> None:
    assert [duration(s) for s in (0.4, 59, 200, 7500)] == ["0s", "59s", "3m 20s", "2h 05m"]
