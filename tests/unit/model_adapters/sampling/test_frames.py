"""Turns of one shape as one graph: made once a shape, replayed on the same tensors, with the same answers."""

from __future__ import annotations

import golden
import pytest
import torch
from graph_stand_in import RecordedGraphs
from sampler_ways import WAYS, prompts

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.sampling.frames import CudaGraphs, Frames, compiled

CASES = [(family, way) for family, ways in WAYS.items() for way in ways]


def plain(turn):
    return turn


@pytest.fixture
def framed():
    """Gives a family's model padded attention and frames."""
    opened = []

    def model(family, **arguments):
        loaded = golden.model(family).loaded
        opened.append((loaded, loaded.network.attention))
        loaded.network.attention, loaded.frames = BACKENDS["padded"], Frames(loaded.network, **arguments)
        return golden.model(family)

    yield model
    for loaded, attention in opened:
        loaded.network.attention, loaded.frames = attention, None


def answers(model, family, way):
    """Tokens, forwards, end and events of every prompt, three rows at a time."""
    fields = {**WAYS[family][way], "trajectory": True}
    got = model.generate(prompts(family), seed=3, max_rows=3, **fields)
    return [(a.tokens, a.nfe, a.reference_nfe, a.finish_reason, [e[:4] for e in a.trajectory]) for a in got]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_captured_turns_answer_as_others(family, way, framed):
    """As CUDA graphs capture them, by a stand-in that fails on what cannot be captured."""
    listed, capture = answers(golden.model(family), family, way), RecordedGraphs()
    assert answers(framed(family, compiler=plain, capture=capture), family, way) == listed
    print(family, way, capture.made, capture.replayed)
