"""Operations of a denoising step: few, as many for 32 rows as for one, and none that the host waits for."""

from __future__ import annotations

import sys

import pytest
from paths import ROOT

import dare_bench
from dare_bench.model_adapters.backbone.attention import BACKENDS

A_LAYER, A_MOE_LAYER, OUTSIDE = 40, 75, 120
CASES = [
    ("tiny-llada", "none"),
    ("tiny-llada", "dual"),
    ("tiny-dream", "none"),
    ("tiny-dream", "dual"),
    ("tiny-sdar", "none"),
    ("tiny-sdar", "exact"),
    ("tiny-llada2-base", "none"),
    ("tiny-llada2-base", "exact"),
]


@pytest.fixture(scope="module")
def dispatch():
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    import dispatch

    yield dispatch
    sys.path.remove(str(ROOT / "scripts" / "bench"))
    del sys.modules["dispatch"]


@pytest.mark.parametrize(("name", "cache"), CASES)
def test_a_step_of_many_rows_dispatches_what_one_row_does(name, cache, dispatch):
    model = dare_bench.load(name, device="cpu").loaded
    model.network.attention = BACKENDS["padded"]
    decoding, layers = dispatch.decodings(name)[cache], model.network.arch.layers
    if "steps" in decoding:
        decoding["steps"] = 4 if cache == "none" else 8  # as few as have a steady turn
    one, many = (dispatch.steady_step(model, rows, decoding) for rows in (1, 32))
    assert one.operations["layers"] / layers <= (A_LAYER if model.network.arch.moe is None else A_MOE_LAYER)
    assert one.total - one.operations["layers"] <= OUTSIDE
    assert many.total <= 1.3 * one.total
    most = 1 if name == "tiny-llada2-base" else 0  # the others have fixed schedules
    assert sum(one.waits.values()) <= most and sum(many.waits.values()) <= most


def test_waits_are_noticed(dispatch):
    """With sdpa the open positions are listed in each forward."""
    model = dare_bench.load("tiny-llada", device="cpu").loaded
    assert sum(dispatch.steady_step(model, 1, dispatch.decodings("tiny-llada")["none"]).waits.values()) >= 2
