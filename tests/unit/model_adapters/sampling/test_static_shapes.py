"""Forwards of static shape: the same answers, and the host looks no more often than it has to."""

from __future__ import annotations

import golden
import pytest
from sampler_ways import WAYS, prompts

from dare_bench.model_adapters.backbone.attention import BACKENDS

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
