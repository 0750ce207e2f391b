"""Lossless self-speculation: whatever is drafted, answers are those of stepwise decoding, in fewer forwards."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import golden
import pytest
import torch
from graph_stand_in import RecordedGraphs
from sampler_ways import MORE_WAYS as WAYS
from sampler_ways import prompts
from trajectories import close_events

from dare_bench.errors import DareError
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.frames import Frames, compiled
from dare_bench.model_adapters.sampling import drafts
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.types import LoopStats, Request

REFUSED = {
    *(("llada", way) for way in ("rcr", "rcr at temperature", "p2", "p2 at temperature")),
    ("dream", "confidence_threshold"),
    *(("llada2", way) for way in ("editing", "editing at temperature")),
    ("llada21", "editing at temperature"),
    ("fast_dllm_v2", "sub_block"),
}
CASES = [(family, way) for family, ways in WAYS.items() for way in ways if (family, way) not in REFUSED]


@pytest.fixture(autouse=True)
def idle(monkeypatch):
    """A device whose forwards take as long whatever they compute."""
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 1 << 40)


def answers(model, family, way, **more):
    """All of the answers to four prompts but times and confidences, and their forwards."""
    fields = {**WAYS[family][way], "trajectory": True, "predictions": True, "near_tie": True, **more}
    got = model.generate(prompts(family)[:4], seed=3, max_rows=3, **fields)
    found = [(a.tokens, a.reference_nfe, a.finish_reason, a.near_tie, a.predictions, close_events(a)) for a in got]
    return found, sum(a.nfe for a in got)


@pytest.mark.parametrize(("family", "way"), CASES)
def test_answers_are_those_without_drafts(family, way, monkeypatch):
    """Listed positions, and frames of static shape as CUDA graphs capture them; three rows at different places."""
    model = golden.model(family)
    expected, forwards = answers(model, family, way)
    listed, fewer = answers(model, family, way, draft_steps=3)
    assert listed == expected and fewer <= forwards
    monkeypatch.setattr(model.loaded.network, "attention", BACKENDS["padded"])
    monkeypatch.setattr(model.loaded, "frames", Frames(model.loaded.network, compiler=None, capture=RecordedGraphs()))
    assert answers(model, family, way, draft_steps=3) == (expected, fewer)


@pytest.mark.parametrize("family", WAYS)
def test_forwards_are_saved_in_every_family(family):
    """In some way of decoding."""
    ways = [way for way in WAYS[family] if (family, way) not in REFUSED]
    forwards = ([answers(golden.model(family), family, way, draft_steps=steps)[1] for steps in (0, 3)] for way in ways)
    assert any(drafted < stepwise for stepwise, drafted in forwards)


@pytest.mark.parametrize(("family", "way"), sorted(REFUSED))
def test_what_cannot_be_drafted_is_refused(family, way):
    with pytest.raises(DareError, match=r"draft_steps=2: .*; use draft_steps=0"):
        golden.model(family).generate(prompts(family)[:1], draft_steps=2, **WAYS[family][way])
    with pytest.raises(DareError, match="draft_steps=1: random numbers of rng='reference' are drawn"):
        golden.model("llada").generate([[5, 6]], gen_length=4, temperature=1.0, rng="reference", draft_steps=1)


def test_a_cpu_and_many_rows_do_not_draft(monkeypatch):
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 0)
    expected = answers(golden.model(), "llada", "low_confidence")
    assert answers(golden.model(), "llada", "low_confidence", draft_steps=3) == expected
    row = SimpleNamespace(
        sampler=SimpleNamespace(draft_steps=3),
        canvas=torch.zeros(40),
        cache=SimpleNamespace(used=False),
        given=None,
        end_forward=None,
    )
    gpu = torch.device("cuda")
    assert [drafts.affordable([row] * rows, gpu) for rows in (1, 2, 4, 5)] == [3, 1, 0, 0]


class Planted:
    """A network with a planted acceptance schedule: the order in which positions are certain stays as it is while
    ``accepted`` tokens are written, and is then another one."""

    conditions = False

    def __init__(self, network, accepted, mask_id):
        self.network, self.accepted, self.mask_id, self.calls = network, accepted, mask_id, 0

    def __getattr__(self, name):
        return getattr(self.network, name)

    def __call__(self, tokens_T, positions_T, plan, logits_at):
        self.calls += 1
        rows = torch.arange(len(plan.lengths)).repeat_interleave(torch.tensor(plan.lengths))
        masks_R = torch.zeros(len(plan.lengths), dtype=torch.long).index_add_(
            0, rows, (tokens_T == self.mask_id).long()
        )
        stage_N, column_N = masks_R[rows[logits_at]] // self.accepted, positions_T[logits_at]
        logits_NV = torch.zeros(len(logits_at), self.network.arch.vocab)
        token_N = 3 + (column_N * 7 + stage_N * 5) % 40
        logits_NV[torch.arange(len(logits_at)), token_N] = 5 + ((column_N * (2 * stage_N + 1)) % 32) / 32
        return SimpleNamespace(logits=logits_NV)


def forwards_of(masks, accepted, count):
    """The forwards of a planted schedule: a draft is right while the stage is the one it was drafted in."""
    forwards, drafted_in = 0, None
    while masks:
        steps = 1
        while steps <= count and steps < masks and (masks - steps + 1) // accepted == drafted_in:
            steps += 1
        forwards, drafted_in, masks = forwards + 1, (masks - steps + 1) // accepted, masks - steps
    return forwards


@pytest.mark.parametrize("accepted", [1, 2, 4, 8])
def test_a_planted_schedule_takes_as_many_forwards_as_it_says(accepted, monkeypatch):
    model = golden.model()
    network = Planted(model.network, accepted, model.spec.mask_id)
    monkeypatch.setattr(model.loaded, "network", network)
    fields = {"gen_length": 32, "trajectory": True}
    [stepwise] = model.generate([[5, 6, 7]], **fields)
    assert stepwise.nfe == 32
    for count in (1, 3, 7):
        network.calls = 0
        [drafted] = model.generate([[5, 6, 7]], draft_steps=count, **fields)
        assert drafted.tokens == stepwise.tokens
        assert close_events(drafted) == close_events(stepwise)
        assert drafted.nfe == network.calls == forwards_of(32, accepted, count)


def test_rows_that_end_in_the_middle_and_memory_that_runs_out(monkeypatch):
    """``end_forward`` counts steps, and such rows have no drafts; the others lose theirs when memory runs out."""
    model = golden.model("sdar").loaded
    requests = [
        Request(str(i), "generate", [5 + i, 6, 7, 8], decoding={"gen_length": 12, "draft_steps": d}, end_forward=e)
        for i, e in enumerate((None, 3, 5, None))
        for d in (0, 3)
    ]
    found = {}
    for request in requests:
        [sample] = model.generate([request])
        found.setdefault(request.key, []).append((sample.answer.tokens, sample.answer.end_step))
    assert all(a == b for a, b in found.values())
    whole = [replace(request, end_forward=None) for request in requests]
    expected = {s.request.key: s.answer.tokens for s in model.generate(whole[::2])}
    stats, network, calls = LoopStats(), model.network, []

    class Fails:
        def __getattr__(self, name):
            return getattr(network, name)

        def __call__(self, *given, **named):
            calls.append(1)
            if len(calls) == 4:
                raise torch.OutOfMemoryError("out of memory")
            return network(*given, **named)

    monkeypatch.setattr(model, "network", Fails())
    again = {s.request.key: s.answer.tokens for s in model.generate(whole[1::2], max_rows=4, stats=stats)}
    assert not stats.halvings, "the drafts went first"
    assert again == expected


@pytest.mark.parametrize("at", range(1, 8))
def test_memory_that_runs_out_while_drafting_loses_no_step(at, monkeypatch):
    model = golden.model("sdar")
    expected, _ = answers(model, "sdar", "low_confidence_static 4 T=0.8")
    write, calls = DeviceState.write, []

    def fails(*given):
        calls.append(1)
        if len(calls) == 2 * at:
            raise torch.OutOfMemoryError("out of memory")
        write(*given)

    monkeypatch.setattr(DeviceState, "write", fails)
    assert answers(model, "sdar", "low_confidence_static 4 T=0.8", draft_steps=3)[0] == expected


def test_rows_that_wait_after_memory_ran_out_verify_nothing_old(monkeypatch):
    """Pages of rows that wait are given to others."""
    model = golden.model("sdar").loaded
    asked = [Request(str(i), "generate", [5 + i, 6, 7, 8] * 3, decoding={"gen_length": 12}) for i in range(4)]
    expected = {s.request.key: s.answer.tokens for s in model.generate(asked)}
    drafted = [replace(request, decoding={"gen_length": 12, "draft_steps": 3}) for request in asked]
    monkeypatch.setattr("dare_bench.model_adapters.sampling.row_cache.FIRST_SLOTS", 40)
    network, calls = model.network, []

    class Fails:
        def __getattr__(self, name):
            return getattr(network, name)

        def __call__(self, *given, **named):
            calls.append(1)
            if len(calls) in (3, 5, 8):
                raise torch.OutOfMemoryError("out of memory")
            return network(*given, **named)

    monkeypatch.setattr(model, "network", Fails())
    assert {s.request.key: s.answer.tokens for s in model.generate(drafted, max_rows=4)} == expected


def test_masks_of_a_prompt_are_candidates_of_all_states():
    """Rows end at different forwards, so that canvases are read in between."""
    model = golden.model("llada")
    mask = model.spec.mask_id
    asked = [[5, mask, 7, mask], [8, 9, 10], [11, mask, 12, 13, 14]]
    fields = {"gen_length": 12, "block_length": 4, "temperature": 0.5}
    stepwise, drafted = ([a.tokens for a in model.generate(asked, max_rows=2, draft_steps=d, **fields)] for d in (0, 3))
    assert drafted == stepwise


def test_a_step_with_drafts_is_one_graph():
    model = golden.model("llada")
    asked, fields = [[3 + j for j in range(12)], [9 + j for j in range(12)]], {"gen_length": 8, "block_length": 4}
    expected = [a.tokens for a in model.generate(asked, **fields)]
    network = model.loaded.network
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "attention", BACKENDS["padded"])
        patch.setattr(model.loaded, "frames", Frames(network, compiler=partial(compiled, backend="eager")))
        assert [a.tokens for a in model.generate(asked, draft_steps=2, **fields)] == expected
