"""Memory that runs out inside a decision: nothing has been written, remembered or drawn, so that it is made again."""

from __future__ import annotations

import golden
import pytest
import torch

from dare_bench.model_adapters.sampling import loop
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.recorder import Recorder
from dare_bench.types import LoopStats, Request

PROMPTS = [[5, 6, 7], [8, 9, 10, 11], [12, 13]]
WAYS = [
    ("llada", {"gen_length": 8}),
    ("llada", {"gen_length": 8, "temperature": 1.0, "rng": "reference"}),
    ("llada", {"gen_length": 8, "strategy": "rcr"}),
    ("sdar", {"gen_length": 8}),
    ("llada22", {"gen_length": 8}),
    ("diffusion_gemma", {"gen_length": 8, "rng": "reference"}),
    ("fast_dllm_v2", {"gen_length": 16}),
]


def answers(family, fields):
    """Everything of the answers but times and confidences, and how often half of the rows had to wait."""
    model, stats = golden.model(family).loaded, LoopStats()
    fields = {"trajectory": True, **fields}
    requests = [Request(str(i), "generate", p, seed=i, decoding=fields) for i, p in enumerate(PROMPTS)]
    samples = {sample.request.key: sample for sample in model.generate(requests, stats=stats)}
    assert all(sample.error is None for sample in samples.values())
    found = [samples[str(i)].answer for i in range(len(PROMPTS))]
    events = [[event[:4] for event in a.trajectory] for a in found]
    return [(a.tokens, a.nfe, a.reference_nfe, a.near_tie) for a in found], events, len(stats.halvings)


@pytest.mark.parametrize(("family", "fields"), [*((f, {**way, "near_tie": True}) for f, way in WAYS), WAYS[0], WAYS[3]])
def test_a_decision_that_fails_is_made_again(family, fields, monkeypatch):
    *expected, halvings = answers(family, fields)
    assert halvings == 0
    decide, calls = loop.joined, []

    def fails_behind_the_second(*given):
        decision = decide(*given)
        calls.append(decision)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("out of memory")
        return decision

    monkeypatch.setattr(loop, "joined", fails_behind_the_second)
    assert answers(family, fields) == (*expected, 1)


@pytest.mark.parametrize(("family", "fields"), [WAYS[0], WAYS[3]])
def test_ends_of_blocks_are_known_before_tokens_are_written(family, fields, monkeypatch):
    *expected, _ = answers(family, fields)
    finished, calls = DeviceState.finished, []

    def fails_once(*given):
        calls.append(given)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("out of memory")
        return finished(*given)

    monkeypatch.setattr(DeviceState, "finished", fails_once)
    assert answers(family, fields) == (*expected, 1)


def test_a_forward_that_is_written_is_not_made_again(monkeypatch):
    def fails(*_):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(Recorder, "observe", fails)
    with pytest.raises(torch.OutOfMemoryError):
        answers(*WAYS[0])
