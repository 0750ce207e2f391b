"""Every family against the published code's own outputs: logits, experts, cached windows, tokens, pure functions."""

from __future__ import annotations

import golden
import pytest
import torch
from trajectories import open_positions

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.moe import route
from dare_bench.model_adapters.replay.published import Drawn
from dare_bench.model_adapters.sampling.draws import COUNTER
from dare_bench.model_adapters.sampling.scores import SCORES
from dare_bench.model_adapters.sampling.strategies.quota import even_schedule
from dare_bench.model_adapters.sampling.tokens import TokenPolicy, propose

TOLERANCE = 2e-4
SAMPLERS = [
    pytest.param(family, case, id=f"{family}-{case['sampler'].split('.', 1)[1]}-{case['name']}")
    for family in golden.FAMILIES
    for case in golden.cases(family)["samplers"]
]
LEAST = {
    "llada": 61,
    "llada_moe": 4,
    "dream": 49,
    "sdar": 30,
    "sdar_moe": 30,
    "llada2": 23,
    "llada21": 23,
    "fast_dllm_v2": 55,
}
GRIDS = [
    (family, int(name.removeprefix("logits_block")))
    for family in golden.BLOCK_CAUSAL
    for name in golden.tensors("forward", family)
    if name.startswith("logits_block")
]
NOWHERE = torch.zeros(0, dtype=torch.long)


def far(got, want):
    """The largest distance; NaN and wrong shapes never pass a comparison with it."""
    assert got.shape == want.shape
    return (got - want).abs().max().item()


# -- logits ---------


@pytest.mark.parametrize(
    ("family", "prefix"), [("llada", ""), ("llada", "long_"), ("llada_moe", ""), ("dream", ""), ("dream", "long_")]
)
def test_logits(family, prefix):
    t = golden.tensors("forward", family)
    name = f"{prefix}shifted_logits" if family == "dream" and not prefix else f"{prefix}logits"
    for ids, want in zip(t[f"{prefix}input_ids"], t[name], strict=True):
        if family == "dream" and prefix:
            want = torch.cat([want[:1], want[:-1]])  # kept as the network gives them: row i predicts token i + 1
        got = golden.model(family).logits(ids.tolist())
        assert got.dtype == torch.float32
        assert far(got, want) < TOLERANCE


def test_dream_rows_agree_with_the_padded_reference():
    t = golden.tensors("forward", "dream")
    for row, name in enumerate(("padded_logits_valid_row0_from6", "padded_logits_row1")):
        ids = t["padded_input_ids"][row][t["padded_attention_mask"][row].bool()]
        want = torch.cat([t[name][:1], t[name][:-1]])
        assert far(golden.model("dream").logits(ids.tolist()), want) < TOLERANCE


@pytest.mark.parametrize(("family", "block"), GRIDS)
def test_logits_on_a_block_grid(family, block):
    t = golden.tensors("forward", family)
    for ids, want in zip(t["input_ids"], t[f"logits_block{block}"], strict=True):
        if golden.model(family).spec.predicts == "next":  # kept as the network gives them: row i predicts token i + 1
            want = torch.cat([want[:1], want[:-1]])
        assert far(golden.model(family).logits(ids.tolist(), block_length=block), want) < TOLERANCE


def test_every_block_causal_family_has_several_grids():
    assert {f for f, _ in GRIDS} == set(golden.BLOCK_CAUSAL)
    assert all(len([1 for f, _ in GRIDS if f == family]) >= 3 for family in golden.BLOCK_CAUSAL)


# -- cached windows ---------


def filled(network, ids, block=None):
    """A store that holds all of ``ids`` in slots 1, 2, ..."""
    store = KVStore(network.arch, len(ids) + 1, torch.device("cpu"), torch.float32)
    everywhere = torch.arange(len(ids))
    plan = Plan((len(ids),), block, cached=Cached(store, (NOWHERE,), everywhere, everywhere + 1))
    network(ids, plan=plan)
    return store


def window(network, ids, start, slots, store, block=None):
    """Logits of a window whose first token stands at ``start``, reading these slots of the store."""
    plan = Plan((len(ids),), block, starts=(start,), cached=Cached(store, (slots,), NOWHERE, NOWHERE))
    return network(ids, plan=plan).logits


@torch.no_grad()
@pytest.mark.parametrize("family", ["sdar", "sdar_moe"])
def test_a_block_over_a_committed_prefix(family):
    t, network = golden.tensors("forward", family), golden.model(family).network
    ids = t["input_ids"][0]
    store = filled(network, ids[:16], block=4)
    got = window(network, ids[16:20], 16, torch.arange(1, 17), store, block=4)
    assert far(got, t["cached_logits_16_20_row0"][0]) < TOLERANCE


@torch.no_grad()
def test_llada_suffix_over_a_prefix_cache():
    t, network = golden.tensors("forward"), golden.model().network
    ids, length = t["input_ids"][0], int(t["prefix_cache_len"])
    got = window(network, ids[length:], length, torch.arange(1, length + 1), filled(network, ids))
    assert far(got, t["prefix_cached_logits"][0]) < TOLERANCE


@torch.no_grad()
def test_llada_block_over_a_dual_cache():
    """The block's own stale keys are replaced by those of its new tokens; the suffix stays stale."""
    t, network = golden.tensors("forward"), golden.model().network
    ids, (low, high) = t["input_ids"][0], t["dual_block"].tolist()
    slots = torch.cat([torch.arange(1, low + 1), torch.arange(high + 1, len(ids) + 1)])
    got = window(network, t["dual_block_ids"][0], low, slots, filled(network, ids))
    assert far(got, t["dual_cached_logits"][0]) < TOLERANCE
    stale = window(network, t["dual_block_ids"][0], low, torch.arange(1, low + 1), filled(network, ids))
    assert far(stale, t["dual_cached_logits"][0]) > 100 * TOLERANCE, "the suffix must count"


# -- experts ---------


@torch.no_grad()
@pytest.mark.parametrize("family", ["llada2", "llada21"])
def test_experts_and_their_weights(family, monkeypatch):
    t, network = golden.tensors("forward", family), golden.model(family).network
    layer = network.at(network.arch.names.layers)[1]
    x_TD = t["layer1_moe_in"][0]
    raw_TE = layer.part("router")(x_TD)
    assert far(raw_TE, t["layer1_router_logits"].view(len(x_TD), -1)) < TOLERANCE
    expert_TK, weight_TK = route(raw_TE, layer.part("expert_bias"), layer.moe, x_TD.dtype)
    got, want = torch.zeros(len(x_TD), layer.moe.experts), torch.zeros(len(x_TD), layer.moe.experts)
    got.scatter_(1, expert_TK, weight_TK)
    want.scatter_(1, t["layer1_topk_idx"][0], t["layer1_topk_weight"])
    assert torch.equal(got > 0, want > 0)
    assert far(got, want) < 1e-5
    seen = {}
    feed = layer._feed_forward
    monkeypatch.setattr(
        layer, "_feed_forward", lambda x_TD, plan: seen.setdefault(x_TD.shape, (x_TD, feed(x_TD, plan)))[1]
    )
    golden.model(family).logits(t["input_ids"][0].tolist(), block_length=8)
    ((given_TD, out_TD),) = seen.values()
    assert far(layer.part("ff_norm")(given_TD), x_TD) < TOLERANCE, "what the layer's experts see in a whole forward"
    assert far(out_TD, t["layer1_moe_out"][0]) < TOLERANCE


# -- samplers ---------


def test_there_are_vectors_of_every_kind():
    result = {family: golden.cases(family)["samplers"] for family in golden.FAMILIES}
    assert {family: len(cases) for family, cases in result.items()} == LEAST
    for family in set(LEAST) - {"llada_moe"}:
        assert sum(golden.draws(case) for case in result[family]) >= 3, family
    assert {c["args"]["alg"] for c in result["dream"]} >= {"origin", "maskgit_plus", "topk_margin", "entropy"}
    for family in ("llada", "dream"):
        kinds = {c["sampler"].rsplit(".", 1)[-1] for c in result[family]}
        assert kinds >= {"none", "prefix", "dual"}, family


def approximate(case):
    """Fast-dLLM's caches and its parallel decoding change the distribution."""
    args = case["args"]
    if case["sampler"].startswith("fast_dllm_v2"):
        return bool(args.get("use_block_cache"))
    fast = case["sampler"].startswith("fast_dllm")
    cached = case["sampler"].endswith((".prefix", ".dual"))
    return fast and (cached or args.get("threshold") is not None or args.get("factor") is not None)


@pytest.mark.parametrize(("family", "case"), SAMPLERS)
def test_tokens(family, case):
    fields = golden.fields(case)
    answers = golden.model(family).generate(golden.unpadded(case), **fields)
    for row, answer in enumerate(answers):
        assert answer.tokens == golden.wanted(case, row)
        forwards = case["num_forwards"] * (2 if fields.get("cfg_scale") else 1)
        # LLaDA's sampler makes all its forwards; Fast-dLLM's leaves a full block, as ours does.
        early = case["sampler"] == "fast_dllm.llada.none" and case["name"] == "none_steps32"
        assert (answer.nfe if early else answer.reference_nfe) == forwards
        assert answer.nfe <= answer.reference_nfe
        assert answer.tier == ("A" if approximate(case) else "E1")


@pytest.mark.parametrize("family", golden.BLOCK_CAUSAL)
def test_tokens_without_a_cache_are_the_same_vectors(family):
    for case in [case for case in golden.cases(family)["samplers"] if not approximate(case)][::3]:
        answers = golden.model(family).generate(golden.unpadded(case), cache="none", **golden.fields(case))
        assert [a.tokens for a in answers] == [golden.wanted(case, i) for i in range(len(answers))], case["name"]


def test_llada21_vectors_need_editing():
    """The 2.1 vectors are not those that 2.0's sampler would give: the family's choice matters."""
    model, differ = golden.model("llada21"), 0
    for case in golden.cases("llada21")["samplers"]:
        if golden.draws(case):
            continue
        plain = {k: v for k, v in case["args"].items() if k not in ("editing_threshold", "max_post_steps")}
        plain.pop("num_to_transfer", None)
        answer = model.generate(golden.unpadded(case), editing=False, **plain)[0]
        differ += answer.tokens != golden.wanted(case, 0)
    assert differ >= 5


# -- pure functions ---------


def units(family, name):
    return [pytest.param(u, id=str(u.get("args") or u)) for u in golden.cases(family)["units"] if u["fn"] == name]


def proposed(unit, policy, logits_NV, law, score="confidence"):
    """Tokens and scores of a policy on the unit's logits; where it draws, with the published noise of its seed."""
    draws = COUNTER
    if not policy.greedy:
        generator = torch.Generator().manual_seed(unit["seed"])
        draws = Drawn(law, torch.empty(logits_NV.shape).exponential_(generator=generator), None)
    return propose(logits_NV, policy, SCORES[score], open_positions([0] * len(logits_NV)), draws)


@pytest.mark.parametrize("unit", units("dream", "dream.sample_tokens"))
def test_dream_sample_tokens(unit):
    args, t = dict(unit["args"]), golden.tensors("units", "dream")
    which = "entropy" if args.pop("neg_entropy", False) else "confidence"
    which = "margin" if args.pop("margin_confidence", False) else which
    policy = TokenPolicy(confidence_of="kept", top_p_first=True, **args)
    built = proposed(unit, policy, t["logits_b"], "masked", which)
    assert built.token_N.tolist() == unit["tokens"]
    assert far(built.score_N, t[unit["conf"]]) < 1e-5


@pytest.mark.parametrize("unit", units("sdar", "sdar.sample_with_temperature_topk_topp"))
def test_sdar_sample(unit):
    """SDAR's confidence is taken before the filters; the other variant is what LLaDA2 does."""
    t = golden.tensors("units", "sdar")
    before = unit["variant"] == "canonical_prefilter_conf"
    policy = TokenPolicy(confidence_of="tempered" if before else "kept", **unit["args"])
    built = proposed(unit, policy, t["logits_b"], "block")
    want = t[unit["conf"]].flatten()
    assert built.token_N.tolist() == [token for row in unit["tokens"] for token in row]
    assert far(built.confidence_N, want) < 1e-5
    assert torch.equal(built.score_N, built.confidence_N)


@pytest.mark.parametrize("unit", units("sdar", "sdar.get_num_transfer_tokens"))
def test_sdar_schedule(unit):
    assert even_schedule(unit["block_length"], unit["steps"]) == unit["out"]
