"""Forwards of static shape: a run has few of them, which are filled well."""

from __future__ import annotations

import random
from dataclasses import replace

import golden
import pytest

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.types import Request


@pytest.fixture
def padded():
    """Opens a family's model with padded attention."""
    opened = []

    def model(family):
        network = golden.model(family).loaded.network
        opened.append((network, network.attention))
        network.attention = BACKENDS["padded"]
        return golden.model(family)

    yield model
    for network, attention in opened:
        network.attention = attention


RUNS = {
    "llada": ({"block_length": 32}, ({"gen_length": 64, "steps": 8}, {"gen_length": 32, "steps": 2})),
    "sdar": (
        {"block_length": 4, "remasking_strategy": "low_confidence_static", "denoising_steps": 2},
        ({"gen_length": 8}, {"gen_length": 4}),
    ),
}


@pytest.mark.parametrize("family", RUNS)
def test_a_run_meets_few_shapes_with_little_padding(family, padded, monkeypatch):
    """200 requests with prompts of 10 to 190 tokens, 16 at a time."""
    rng, vocab = random.Random(0), golden.cases(family)["meta"]["prompt_vocab"]
    common, lengths = RUNS[family]
    requests = [
        Request(str(i), "generate", [rng.randrange(vocab) for _ in range(rng.randint(10, 190))]) for i in range(200)
    ]
    requests = [replace(r, decoding={**common, **lengths[i % len(lengths)]}) for i, r in enumerate(requests)]
    shapes, computed, needed = set(), 0, 0
    forward = DeviceState.forward

    def counted(state, network):
        nonlocal computed, needed
        pack = state.pack
        view = pack.plan.padded(state.canvas_T.device).view
        tables = (state.canvas_T, state.schedule_RS, pack.candidates.at_N, view.mask)
        shapes.add((pack.plan.tokens, pack.candidates.width, *(table.shape for table in tables)))
        computed += pack.plan.tokens
        needed += sum(stop - start for start, stop in (row.window() for row in state.rows))
        return forward(state, network)

    monkeypatch.setattr(DeviceState, "forward", counted)
    assert all(sample.error is None for sample in padded(family).loaded.generate(requests, max_rows=16))
    assert len(shapes) <= 24
    assert 1 < computed / needed <= 1.2
