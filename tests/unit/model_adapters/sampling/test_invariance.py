"""A sample is a function of its own seed and prompt: not of batch size, order, neighbors, settings of other rows, or
of who else finished."""

from __future__ import annotations

import random

import golden
import pytest
import torch

from dare_bench.types import Request

WAYS = {
    "early stop": {"early_stop": True, "eos_id": 79},
    "suppressed": {"confidence_eos_eot_inf": True, "eos_id": 79, "eot_id": 26},
}
"""Those that are not in ``sampler_ways.py``, and so not in ``test_families_invariance.py``."""


def prompts(count: int = 8) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(120) for _ in range(rng.randrange(1, 40))] for _ in range(count)]


def told(generation):
    events = [(e.step, e.op, e.position, e.token) for e in generation.trajectory]
    return generation.tokens, generation.nfe, generation.finish_reason, events


@pytest.mark.parametrize("way", WAYS)
def test_rows_and_order_change_nothing(way):
    model, items = golden.model(), prompts()
    options = {"gen_length": 16, "block_length": 8, "seed": 3, "trajectory": True, **WAYS[way]}
    alone = [told(g) for g in model.generate(items, max_rows=1, **options)]
    for rows in (3, 8):
        assert [told(g) for g in model.generate(items, max_rows=rows, **options)] == alone
    order = list(range(len(items)))
    random.Random(1).shuffle(order)
    shuffled = model.generate([items[i] for i in order], max_rows=5, **options)
    assert [told(g) for g in shuffled] == [alone[i] for i in order]


def test_the_same_prompt_twice_is_two_draws_and_the_seed_matters():
    model, item = golden.model(), prompts(1)[0]
    options = {"gen_length": 16, "temperature": 1.0}
    first, second = model.generate([item, item], **options)
    assert first.tokens != second.tokens
    assert model.generate([item], **options)[0].tokens == first.tokens
    assert model.generate([item], seed=1, **options)[0].tokens != first.tokens


def test_finished_slots_are_refilled():
    stats_of = {}
    for stop in (False, True):
        model = golden.model()
        model.generate(prompts(16), gen_length=64, block_length=8, max_rows=4, early_stop=stop, eos_id=79)
        stats_of[stop] = model.last_stats
    assert stats_of[True].forwards < stats_of[False].forwards
    assert stats_of[False].occupancy == 1.0
    assert stats_of[True].occupancy > 0.7


def test_early_stop_is_exact_up_to_the_first_eos():
    model, options = golden.model(), {"gen_length": 32, "block_length": 8, "eos_id": 79}
    full = model.generate(prompts(), **options)
    early = model.generate(prompts(), early_stop=True, **options)
    stopped = 0
    for a, b in zip(full, early, strict=True):
        assert b.tokens == a.tokens[: len(b.tokens)]
        if 79 in a.tokens:
            assert b.tokens[-1] == 79 and 79 not in b.tokens[:-1]
        stopped += b.nfe < a.nfe
    assert stopped >= 3


class Starved:
    """A network that has memory for so many rows only."""

    def __init__(self, network, rows):
        self.network, self.rows, self.calls = network, rows, 0
        self.attention, self.config = network.attention, network.config

    def __call__(self, tokens, positions=None, plan=None, **rest):
        if len(plan.lengths) > self.rows:
            raise torch.OutOfMemoryError("out of memory")
        self.calls += 1
        return self.network(tokens, positions, plan, **rest)


def test_out_of_memory_halves_the_rows_and_loses_nothing(monkeypatch):
    model, items = golden.model(), prompts()
    options = {"gen_length": 16, "block_length": 8, "temperature": 0.7}
    want = [g.tokens for g in model.generate(items, **options)]
    monkeypatch.setattr(model.loaded, "network", Starved(model.network, 3))
    got = model.generate(items, max_rows=8, **options)
    assert [g.tokens for g in got] == want
    assert model.last_stats.halvings == [{"rows": 8, "now": 4}, {"rows": 4, "now": 2}]


def test_one_row_that_does_not_fit_is_an_error(monkeypatch):
    from dare_bench.errors import MemoryLimitError

    model = golden.model()
    monkeypatch.setattr(model.loaded, "network", Starved(model.network, 0))
    with pytest.raises(MemoryLimitError, match="one row of 18 tokens does not fit"):
        model.generate([[1, 2]], gen_length=16)
    with pytest.raises(MemoryLimitError, match="one canvas of"):
        model.loglikelihood([([1, 2], [3, 4])])


def test_near_ties_are_recorded_if_asked_for():
    model = golden.model()
    result = model.generate(prompts(), gen_length=16, near_tie=True)
    assert all(g.near_tie is not None for g in result)
    assert all(g.near_tie is None for g in model.generate(prompts(2), gen_length=16))


def test_trajectory_tells_every_token_once():
    item = prompts(1)[0]
    answer = golden.model().generate([item], gen_length=16, block_length=8, steps=8, trajectory=True)[0]
    assert sorted(e.position for e in answer.trajectory) == list(range(16))
    assert [e.token for e in sorted(answer.trajectory, key=lambda e: e.position)] == answer.tokens
    assert [e.step for e in answer.trajectory] == sorted(e.step for e in answer.trajectory)
    assert all(e.position < 8 for e in answer.trajectory[:8])
    assert max(e.step for e in answer.trajectory) == answer.nfe - 1 == 7


def test_prompts_may_be_one_or_many_and_of_any_integer_kind():
    import numpy

    model = golden.model()
    want = model.generate([[1, 2, 3]], gen_length=4)[0].tokens
    for prompt in ([1, 2, 3], (1, 2, 3), numpy.array([1, 2, 3]), torch.tensor([[1, 2, 3]]), [torch.tensor([1, 2, 3])]):
        answers = model.generate(prompt, gen_length=4)
        assert [a.tokens for a in answers] == [want]
    assert model.generate([], gen_length=4) == []


PROMPT = list(range(1, 10))


def answers(family: str, fields: list[dict], rows: int) -> list[tuple[list[int], int]]:
    requests = [Request(str(i), "generate", PROMPT, decoding=f, seed=7) for i, f in enumerate(fields)]
    result = {s.request.key: s.answer for s in golden.model(family).loaded.generate(requests, max_rows=rows)}
    return [(result[str(i)].tokens, result[str(i)].nfe) for i in range(len(fields))]


@pytest.mark.parametrize(
    ("family", "same", "ways"),
    [
        ("dream", {"alg": "origin", "gen_length": 12}, [{"steps": 4}, {"steps": 12}, {"steps": 12, "eps": 0.3}]),
        ("dream", {"alg": "origin", "temperature": 0.5}, [{"gen_length": 4}, {"gen_length": 16}]),
        (
            "dream",
            {"alg": "confidence_threshold", "gen_length": 12, "threshold": 0.3},
            [{"steps": 3}, {"steps": 12}, {"steps": 6}],
        ),
        ("llada", {"gen_length": 16, "block_length": 8}, [{"steps": 4}, {"steps": 16}]),
        ("sdar", {"gen_length": 12, "temperature": 1.0}, [{"denoising_steps": 1}, {"denoising_steps": 4}]),
        # At this temperature the mask token itself is drawn: rows run to the end of their schedules.
        (
            "llada2",
            {"gen_length": 16, "block_length": 8, "threshold": 1.0, "temperature": 50.0},
            [{"steps": 1}, {"steps": 8}, {"steps": 3}],
        ),
    ],
)
def test_each_row_keeps_its_own_schedule(family, same, ways):
    fields = [{**same, **way} for way in ways]
    alone = answers(family, fields, 1)
    assert answers(family, fields, len(fields)) == alone
    assert answers(family, fields[::-1], 2)[::-1] == alone


@pytest.mark.parametrize("family", golden.FAMILIES)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_bound_of_forwards_holds(family, steps):
    model = golden.model(family)
    ways: dict[str, list[dict]] = {
        "llada": [{"steps": steps, "threshold": 1.0}, {"steps": steps, "factor": 0.5}, {"steps": steps}],
        "dream": [{"steps": steps, "alg": "confidence_threshold"}, {"steps": 20, "alg": "origin"}, {"steps": steps}],
        "sdar": [
            {"denoising_steps": steps, "remasking_strategy": s}
            for s in ("entropy_bounded", "sequential", "low_confidence_static", "low_confidence_dynamic")
        ],
        "llada2": [{"steps": steps}, {"editing_threshold": 0.2, "threshold": 0.5, "max_post_steps": 3}],
        "fast_dllm_v2": [{"small_block_size": steps, "cache": cache} for cache in ("exact", "sub_block")],
    }
    kind = {"llada_moe": "llada", "sdar_moe": "sdar", "llada21": "llada2"}.get(family, family)
    for fields in ways[kind]:
        request = Request("0", "generate", PROMPT, decoding={**fields, "gen_length": 16})
        (sample,) = model.loaded.generate([request])
        assert sample.answer.nfe <= model.loaded.forwards(request), fields
