"""Forwards of static shape: the same answers, and the host looks no more often than it has to."""

from __future__ import annotations

import random
from dataclasses import replace

import golden
import pytest
from sampler_ways import MORE_WAYS as WAYS
from sampler_ways import prompts

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.sampling.batch import BatchState
from dare_bench.types import Request

CASES = [(family, way) for family, ways in WAYS.items() for way in ways]


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


def answers(model, family, way):
    """Tokens, forwards, end and events of every prompt, three rows at a time."""
    fields = {**WAYS[family][way], "trajectory": True}
    got = model.generate(prompts(family), seed=3, max_rows=3, **fields)
    return [(a.tokens, a.nfe, a.reference_nfe, a.finish_reason, [e[:4] for e in a.trajectory]) for a in got]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_answers_are_those_of_listed_positions(family, way, padded):
    listed = answers(golden.model(family), family, way)
    assert answers(padded(family), family, way) == listed


RUNS = {
    "llada": ({"block_length": 32}, ({"gen_length": 64, "steps": 16}, {"gen_length": 32, "steps": 16})),
    "sdar": (
        {"block_length": 4, "remasking_strategy": "low_confidence_static"},
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
    step = BatchState.step

    def counted(batch, network):
        nonlocal computed, needed
        pack = batch.pack
        tables = (batch.canvas_T, batch.schedule_RS, pack.candidates.at_N, pack.plan.padded(batch.device).view.mask)
        shapes.add((pack.plan.tokens, pack.candidates.width, *(table.shape for table in tables)))
        computed += pack.plan.tokens
        needed += sum(stop - start for start, stop in (row.window() for row in batch.rows))
        return step(batch, network)

    monkeypatch.setattr(BatchState, "step", counted)
    assert all(sample.error is None for sample in padded(family).loaded.generate(requests, max_rows=16))
    assert len(shapes) <= 24
    assert 1 < computed / needed <= 1.2
