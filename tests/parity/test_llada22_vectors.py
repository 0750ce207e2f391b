"""LLaDA2.2 against the port of its sampler in FLX-OSS/FluxServe, on our logits; its router against its definition."""

from __future__ import annotations

import golden
import pytest
import torch

from dare_bench.diffusion.plan import Plan
from dare_bench.errors import DecodingError
from dare_bench.loading import load
from dare_bench.model_adapters.backbone.moe import Pools, route
from dare_bench.types import Request

CASES = [pytest.param(case, id=case["name"]) for case in golden.cases("llada22")["samplers"]]
FEW = CASES[::3]


def check(case, cache):
    answer = golden.model("llada22").generate(golden.unpadded(case), cache=cache, trajectory=True, **case["args"])[0]
    assert answer.tokens == case["output_ids"][0]
    assert (answer.nfe, answer.reference_nfe, answer.tier) == (case["num_forwards"], case["num_forwards"], "A")
    assert answer.residual_masks == 0


@pytest.mark.parametrize("case", CASES)
def test_tokens(case):
    check(case, "exact")


@pytest.mark.parametrize("case", FEW)
def test_tokens_without_a_cache_are_the_same_vectors(case):
    check(case, "none")


def test_the_vectors_delete_insert_and_leave_repeated_states():
    edits = [case.values[0]["edits"] for case in CASES]
    assert len(CASES) >= 30
    few = [case.values[0]["edits"] for case in FEW]
    for kind in ("delete", "split", "escaped", "final"):
        assert sum(edit[kind] > 0 for edit in edits) >= 5, kind
        assert any(edit[kind] > 0 for edit in few), kind
    assert sum(not edit["escaped"] for edit in edits) >= 10, "the published code leaves repeated states at random"


@pytest.mark.parametrize("case", CASES[::6])
def test_a_trajectory_holds_every_change(case):
    """Replaying the events gives the answer: insertions and deletions are changes of the positions behind them."""
    answer = golden.model("llada22").generate(golden.unpadded(case), trajectory=True, **case["args"])[0]
    canvas = {}
    for event in answer.trajectory:
        canvas[event.position] = event.token
        assert (event.op == "remask") == (event.token == 167)
    assert [canvas[i] for i in range(len(answer.tokens))] == answer.tokens


def test_near_ties_and_the_bound_of_forwards():
    case = CASES[0].values[0]
    model, prompt = golden.model("llada22"), golden.unpadded(case)
    plain, measured = (model.generate(prompt, near_tie=near, **case["args"])[0] for near in (False, True))
    assert (measured.tokens, measured.nfe) == (plain.tokens, plain.nfe) and measured.near_tie is False
    fields = {**case["args"], "max_steps_per_block": 5}
    request = Request("0", "generate", prompt[0], decoding=fields)
    (sample,) = model.loaded.generate([request])
    assert sample.answer.nfe <= model.loaded.forwards(request) == 10


def test_rows_do_not_depend_on_their_neighbors():
    model = golden.model("llada22")
    cases = [case.values[0] for case in CASES[:8]]
    fields = cases[0]["args"]
    prompts = [case["prompt_ids"][0] for case in cases]
    together = [answer.tokens for answer in model.generate(prompts, **fields)]
    assert together == [model.generate([prompt], **fields)[0].tokens for prompt in prompts]


# -- above temperature 0 ---------


def drawn(prompts, temperature, seed=100, **fields):
    fields = {"gen_length": 16, "temperature": temperature, "trajectory": True, **fields}
    requests = [Request(str(i), "generate", prompt, decoding=fields, seed=seed + i) for i, prompt in prompts]
    return {int(s.request.key): s.answer for s in golden.model("llada22").loaded.generate(requests)}


PROMPTS = list(enumerate([[5, 6, 7], [15], [20] * 9]))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_sampled_answers_depend_on_their_seed_alone(temperature):
    together = drawn(PROMPTS, temperature)
    for i, prompt in PROMPTS:
        answer = together[i]
        assert answer.tokens == drawn([(i, prompt)], temperature)[i].tokens
        assert len(answer.tokens) == 16 and answer.residual_masks == 0 and answer.tier == "A"
        assert not {8, 37, 167} & set(answer.tokens), "no edit and no mask is left"
    assert together[0].tokens == drawn(PROMPTS, temperature, cache="none")[0].tokens
    assert all(together[i].tokens != answer.tokens for i, answer in drawn(PROMPTS, temperature, seed=200).items())
    assert any(together[i].tokens != answer.tokens for i, answer in drawn(PROMPTS, 0.0).items())


def test_the_log_probability_of_a_drawn_token_is_that_of_its_forward():
    """In the first block, whose forwards see nothing else. A token that was moved or replaced has none."""
    model, prompt, recorded, none = golden.model("llada22"), list(range(40, 48)), 0, 0
    events = [event for event in drawn([(0, prompt)], 1.5)[0].trajectory if event.position < 8]
    canvas = [167] * 8
    for step in range(max(event.step for event in events) + 1):
        logits = model.logits(prompt + canvas)[8:].double()
        logprob = (logits / 1.5).log_softmax(-1)
        for event in (event for event in events if event.step == step):
            canvas[event.position] = event.token
            if event.op == "set" and event.logprob is not None:
                assert event.logprob == pytest.approx(float(logprob[event.position, event.token]), abs=1e-4)
                recorded += 1
            assert event.op == "set" or event.logprob == 0.0
            none += event.logprob is None
    assert recorded > 8 and none > 3


# -- experts ---------


def test_the_experts_of_a_block_come_from_its_pool():
    """Token by token: the pool are the experts with the largest value at any token of the block, of one row alone."""
    layer = golden.model("llada22").network.model.layers[1]
    moe, bias_E = layer.moe, torch.linspace(-0.2, 0.2, layer.moe.experts)
    assert (moe.pool, moe.pool_block, moe.groups) == (6, 8, 1)
    plan = Plan((11, 8, 8), 8, starts=(8, 0, 16))
    raw_TE = torch.randn(27, moe.experts, generator=torch.Generator().manual_seed(0))
    expert_TK, weight_TK = route(raw_TE, bias_E, moe, torch.float32, Pools.of(plan, moe, torch.device("cpu")))
    value_TE, used = raw_TE.sigmoid(), 0
    for block in (range(8), range(8, 11), range(11, 19), range(19, 27)):
        rank_TE = (value_TE + bias_E)[list(block)]
        pool = rank_TE.max(0).values.topk(moe.pool).indices.tolist()
        for t, rank_E in zip(block, rank_TE, strict=True):
            wanted = sorted(pool, key=lambda e: -float(rank_E[e]))[: moe.top_k]
            assert expert_TK[t].tolist() == wanted
            used += set(wanted) != set(rank_E.topk(moe.top_k).indices.tolist())
            value_K = value_TE[t, wanted]
            assert torch.allclose(weight_TK[t], value_K / value_K.sum() * moe.scale, atol=1e-6)
    assert used, "for some token the pool leaves out one of its best experts"


def test_copies_of_a_row_choose_their_experts_apart():
    block_T = Plan((12, 6), 3, copies=2).blocks(3, torch.device("cpu"))
    assert block_T.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 5, 5]


def test_experts_are_restricted_in_whole_forwards():
    """No block of a forward uses more experts than its pool has."""
    ids, model = list(range(24)), golden.model("llada22")
    want = model.logits(ids)
    layers = [layer for layer in model.network.model.layers if layer.moe]
    seen = []
    hooks = [
        layer.part("experts").register_forward_hook(lambda _, given, __: seen.append(given[1])) for layer in layers
    ]
    assert torch.equal(model.logits(ids), want)
    for hook in hooks:
        hook.remove()
    assert len(seen) == len(layers)
    assert all(len(set(experts[i : i + 8].flatten().tolist())) <= 6 for experts in seen for i in range(0, 24, 8))


# -- what is opened ---------


def test_by_name_it_edits_and_otherwise_it_is_llada2():
    folder, model = golden.with_weights("llada22", "llada21"), golden.model("llada22")
    plain = load(folder, device="cpu", mask_id=167)
    assert (plain.spec.family, model.spec.family) == ("llada2", "llada2.2")
    assert torch.equal(plain.logits(list(range(16))), model.logits(list(range(16))))
    assert (model.spec.eos_ids, model.spec.edit_ids, model.spec.block_length) == ((164,), (8, 37), 8)
    assert load(folder, device="cpu", mask_id=167, family="llada2.2").spec.eos_ids == (164, 163)
    decoding = model.loaded.resolve({})
    assert (decoding.threshold, decoding.editing_threshold, decoding.max_post_steps) == (0.5, 0.0, 16)
    assert (decoding.delete_token_id, decoding.split_token_id) == (8, 37)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"block_length": 4}, "block_length=4 must be a multiple of 8"),
        ({"max_steps_per_block": 1}, "max_steps_per_block=1 is not valid"),
        ({"delete_token_id": 9999}, "delete_token_id=9999 is outside the vocabulary"),
        ({"num_to_transfer": 1}, "llada2.2 has no decoding field 'num_to_transfer'"),
    ],
)
def test_wrong_fields_are_one_line(fields, says):
    with pytest.raises(DecodingError, match=says) as seen:
        golden.model("llada22").loaded.resolve(fields)
    assert "\n" not in str(seen.value)


def test_a_checkpoint_without_edit_ids_is_refused():
    model = load(golden.PARITY / "llada21", device="cpu", mask_id=167, family="llada2.2")
    with pytest.raises(DecodingError, match="names no delete_token_id"):
        model.loaded.resolve({})
    assert model.loaded.resolve({"delete_token_id": 3, "split_token_id": 4}).split_token_id == 4


def test_likelihoods_keep_to_the_router_s_blocks():
    model = golden.model("llada22")
    with pytest.raises(DecodingError, match="must be a multiple of 8"):
        model.loglikelihood([([1, 2], [3])], block_length=4)
    whole = model.loglikelihood([([1, 2], [3, 4, 5])])[0]
    assert whole.estimator == "exact" and whole.value < 0
