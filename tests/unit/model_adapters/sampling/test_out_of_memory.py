"""Memory that runs out inside a decision: nothing has been written, remembered or drawn, so that it is made again."""

from __future__ import annotations

import golden
import pytest
import torch
from graph_stand_in import RecordedGraphs
from torch.utils._python_dispatch import TorchDispatchMode

from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.frames import Frames
from dare_bench.model_adapters.sampling import drafts, loop, row_cache, speculation
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


@pytest.mark.parametrize(("family", "fields"), [*((f, {**way, "near_tie": True}) for f, way in WAYS[1:]), WAYS[0]])
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


@pytest.mark.parametrize("framed", [False, True])
def test_fewer_rows_take_less_memory_in_static_shapes_too(framed, monkeypatch):
    """A pack is filled to the sizes of the packs before it, but not to those for which memory ran out."""
    loaded, decide, counts = golden.model("llada").loaded, loop.joined, []
    monkeypatch.setattr(loaded.network, "attention", BACKENDS["padded"])
    monkeypatch.setattr(loaded, "frames", Frames(loaded.network, None, RecordedGraphs()) if framed else None)
    *expected, _ = answers(*WAYS[0])

    def fails_for_all_rows(groups, decisions, positions):
        counts.append(len(positions.row_N))
        if counts[-1] > counts[0] / 2:
            raise torch.OutOfMemoryError("out of memory")
        return decide(groups, decisions, positions)

    monkeypatch.setattr(loop, "joined", fails_for_all_rows)
    if framed:
        assert loaded.frames.clear()  # else they are replayed
    assert answers(*WAYS[0]) == (*expected, 1)


def test_one_row_gets_the_memory_of_captured_steps(monkeypatch):
    loaded = golden.model("llada").loaded
    monkeypatch.setattr(loaded.network, "attention", BACKENDS["padded"])
    monkeypatch.setattr(loaded, "frames", Frames(loaded.network, None, RecordedGraphs()))
    requests = [Request("0", "generate", PROMPTS[0], decoding={"gen_length": 8})]
    want = next(iter(loaded.generate(requests))).answer.tokens
    pack, calls = loop.ActiveRows.pack, []

    def fails_while_there_are_frames(batch):
        calls.append(len(loaded.frames._frames))
        if calls[-1]:
            raise torch.OutOfMemoryError("out of memory")
        pack(batch)

    monkeypatch.setattr(loop.ActiveRows, "pack", fails_while_there_are_frames)
    assert next(iter(loaded.generate(requests))).answer.tokens == want
    assert calls[0] > 0 == calls[1]


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


class NoMemory(TorchDispatchMode):
    """Each operation that needs memory fails."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(result.alias_info is None for result in func._schema.returns):
            raise torch.OutOfMemoryError("out of memory")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("family", "fields"), [WAYS[0], WAYS[2], WAYS[4], WAYS[5]])
def test_what_is_written_is_counted_without_memory(family, fields, monkeypatch):
    expected, count = answers(family, fields), DeviceState.count

    def without_memory(*given):
        with NoMemory():
            count(*given)

    monkeypatch.setattr(DeviceState, "count", without_memory)
    assert answers(family, fields) == expected


def test_drafts_that_fail_lose_no_event(monkeypatch):
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 10**6)
    fields = {"gen_length": 8, "draft_steps": 2}
    expected, calls, states = answers("sdar", fields), [], speculation._states

    def fails_in_the_third_forward(*given):
        calls.append(given)
        if len(calls) == 7:  # three in each forward
            raise torch.OutOfMemoryError("out of memory")
        return states(*given)

    monkeypatch.setattr(speculation, "_states", fails_in_the_third_forward)
    (found, events, halvings), (wanted, wanted_events, _) = answers("sdar", fields), expected
    assert len(calls) > 7 and halvings == 0 and events == wanted_events
    assert [(tokens, counted, near) for tokens, _, counted, near in found] == [(t, c, n) for t, _, c, n in wanted]


def test_a_cache_that_cannot_grow_loses_no_slot(monkeypatch):
    """The pages of the rows before go back to the pool, of which one slot is null."""
    monkeypatch.setattr(row_cache, "FIRST_SLOTS", 8)
    fields = {"gen_length": 16, "cache": "exact"}
    *expected, _ = answers("sdar", fields)
    caches, grow, calls = [], KVStore.grow, []

    def fails_second(*given):
        calls.append(given)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("out of memory")
        grow(*given)

    class Noted(row_cache.RowCache):
        def __init__(self, *given):
            super().__init__(*given)
            caches.append(self)

    monkeypatch.setattr(KVStore, "grow", fails_second)
    monkeypatch.setattr(loop, "RowCache", Noted)
    *found, halvings = answers("sdar", fields)
    assert found == expected and halvings == 1
    pool = caches[0].pool
    assert len(pool._free) + sum(len(page.slots) for page in pool._idle.values()) == pool._slots - 1
