"""What a forward costs besides computing, in the mean of a whole generation: launches, copies and waits, for one row
and for 16 rows of different length."""

from __future__ import annotations

import sys

import pretend_device
import pytest
from paths import ROOT

BOUNDS = {
    ("tiny-llada", "none"): (190, 0.3),
    ("tiny-llada", "dual"): (203, 0.3),
    ("tiny-dream", "dual"): (224, 0.3),
    ("tiny-sdar", "exact"): (254, 0.4),
    ("tiny-llada2-base", "exact"): (376, 1),
}
"""Launches of one row, and waits of 16 rows. These may have a tenth more launches, and one copy."""


@pytest.fixture(scope="module")
def dispatch():
    sys.path.insert(0, str(ROOT / "scripts" / "bench"))
    import dispatch

    with pretend_device.available():
        yield dispatch
    sys.path.remove(str(ROOT / "scripts" / "bench"))
    del sys.modules["dispatch"]


@pytest.mark.parametrize(("name", "cache"), BOUNDS)
def test_many_rows_launch_little_more_than_one(name, cache, dispatch):
    launches, waits = BOUNDS[name, cache]
    decoding = dispatch.decodings(name)[cache]
    one, many = (dispatch.count(dispatch.opened(name, "padded"), rows, decoding) for rows in (1, 16))
    assert one.mean("launches") <= launches
    assert many.mean("launches") <= 1.1 * one.mean("launches") and many.steady <= 1.05 * one.steady
    assert many.mean("copies") <= 1 and many.mean("waits") <= waits


def test_waits_are_noticed(dispatch):
    """With sdpa the open positions are listed in each forward."""
    decoding = dispatch.decodings("tiny-llada")["none"]
    assert dispatch.count(dispatch.opened("tiny-llada", "sdpa"), 1, decoding).mean("waits") >= 2
