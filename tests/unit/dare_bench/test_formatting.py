"""Values as users read them."""

from __future__ import annotations

from dare_bench.formatting import plain_value


def test_values_of_settings() -> None:
    assert [plain_value(value) for value in (None, True, [], ["a, b"])] == ["none", "yes", "none", '"a, b"']
    assert plain_value({"name": "sequential", "steps": None}) == "sequential"
    assert plain_value({"name": "threshold", "threshold": 0.9, "steps": None}) == "threshold (threshold 0.9)"
    assert plain_value({"random": True, "format_weight": 0.5}) == "random yes, format_weight 0.5"
    assert plain_value({}) == "none"
