"""Every family, strategy and cache on a pretend accelerator: the same tokens as on the CPU, and no operation that mixes
tensors of the host and of the device."""

from __future__ import annotations

import golden
import pretend_device
import pytest
from sampler_ways import MORE_WAYS, prompts

from dare_bench.loading import load

SHORT = {"gen_length": 12, "block_length": 6}
WAYS = {
    **MORE_WAYS,
    "llada": {
        **MORE_WAYS["llada"],
        "reference": {**SHORT, "temperature": 0.7, "rng": "reference"},
        "eoser": {**SHORT, "strategy": "eoser"},
        "ascending": {**SHORT, "strategy": "ascending"},
    },
    "sdar": {**MORE_WAYS["sdar"], "cache none": {"gen_length": 9, "block_length": 4, "cache": "none"}},
    "llada22": {"levenshtein": {"gen_length": 12, "block_length": 8}},
    "diffusion_gemma": {"renoise": {"gen_length": 8}},
}
FEW = {"llada22": 2, "diffusion_gemma": 1}
"""Prompts of families whose answers take many forwards; of others, four."""
CASES = [(family, way) for family, ways in WAYS.items() for way in ways]


@pytest.fixture(scope="module")
def on_device():
    """A family's model on the pretend device, opened once."""
    models = {}

    def model(family):
        if family not in models:
            cpu = golden.model(family)
            ids = {k: v for k, v in golden.cases(family)["meta"].items() if k in ("mask_id", "eos_id", "eot_id")}
            named = {"family": "llada2.2"} if family == "llada22" else {}
            folder = cpu.loaded.path
            models[family] = load(folder, device="pretend", dtype="float32", **named, **ids)
        return models[family]

    with pretend_device.available():
        yield model


def answers(model, family, way, **more):
    got = model.generate(
        prompts(family)[: FEW.get(family, 4)], seed=3, max_rows=3, trajectory=True, **{**WAYS[family][way], **more}
    )
    return [(a.tokens, a.nfe, a.reference_nfe, a.finish_reason, [e[:4] for e in a.trajectory]) for a in got]


@pytest.mark.parametrize(("family", "way"), CASES)
def test_the_same_tokens_on_a_device(family, way, on_device):
    with pretend_device.counted() as counts:
        got = answers(on_device(family), family, way)
    assert got == answers(golden.model(family), family, way)
    assert counts["launches"] > counts["waits"] > 0
