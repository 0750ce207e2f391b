"""LLaDA against the published code's own outputs: likelihoods and pure functions (the rest: test_family_vectors.py);
and drafts against FreeDave's vectors: the tokens of its decoding without drafts, and its forwards with them.

``freedave.json`` has prompts, answers and forwards of cychomatica/FreeDave at 8b48121c, generation/core.py, on the
weights of ``llada``. It keeps keys and values as Fast-dLLM does.
"""

from __future__ import annotations

import json

import golden
import pytest
import torch
from trajectories import open_positions

from dare_bench.diffusion.likelihood import draw
from dare_bench.model_adapters.replay.published import gumbel_argmax
from dare_bench.model_adapters.sampling import drafts
from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.strategies.bounded import Factor, Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Quota, even_schedule
from dare_bench.types import Request

SCORED = {c["name"]: c for c in golden.cases()["likelihood"]}
UNITS = golden.cases()["units"]


def test_there_are_vectors_of_every_kind():
    assert sum("log_likelihood" in c for c in SCORED.values()) >= 9


def test_unpadded_rows_agree_with_the_padded_reference():
    t = golden.tensors("forward")
    for ids, keep, want in zip(t["padded_input_ids"], t["padded_attention_mask"], t["padded_logits"], strict=True):
        real = keep.bool()
        assert (golden.model().logits(ids[real].tolist()) - want[real]).abs().max() < 2e-4


@pytest.mark.parametrize("name", [n for n, c in SCORED.items() if "log_likelihood" in c])
def test_likelihoods(name):
    case = SCORED[name]
    fields = {k: case[k] for k in ("mc_num", "batch_size", "cfg_scale")}
    pair = (case["prompt_ids"], case["answer_ids"])
    result = golden.model().loglikelihood([pair], estimator="reference", seed=case["seed"], **fields)[0]
    assert result.value == pytest.approx(case["log_likelihood"], abs=1e-3, rel=1e-5)
    assert result.draws == case["mc_num"]
    if "is_greedy" in case:
        assert result.is_greedy == case["is_greedy"]


@pytest.mark.parametrize("name", [n for n, c in SCORED.items() if "log_likelihood" not in c])
def test_greedy_suffix(name):
    case = SCORED[name]
    result = golden.model().loglikelihood([(case["prompt_ids"], case["answer_ids"])], cfg_scale=case["cfg_scale"])[0]
    assert result.is_greedy == case["is_greedy"]


@pytest.mark.parametrize("name", [n for n, c in SCORED.items() if c.get("first_noisy_batch")])
def test_masks_replay_the_published_draws(name):
    case = SCORED[name]
    n, size = len(case["answer_ids"]), case["batch_size"]
    settings = {"estimator": "reference", "mc_num": case["mc_num"], "batch_size": size}
    draws = draw(n, settings, case["seed"])
    mask_id = golden.cases()["meta"]["mask_id"]
    noisy = torch.tensor(case["first_noisy_batch"])[:, -n:]
    assert torch.equal(draws.masks_Mn[:size], noisy == mask_id)
    assert torch.allclose(1 / (draws.weights_M[:size] * case["mc_num"]), torch.tensor(case["first_p_mask"]).double())


@pytest.mark.parametrize("unit", [u for u in UNITS if u["fn"] == "llada.get_num_transfer_tokens"], ids=str)
def test_schedule(unit):
    assert [even_schedule(m, unit["steps"]) for m in unit["masked"]] == unit["out"]


@pytest.mark.parametrize("unit", [u for u in UNITS if u["fn"] == "llada.add_gumbel_noise"], ids=lambda u: u["out"])
def test_gumbel(unit):
    logits = golden.tensors("units")[unit["logits"]]
    generator = torch.Generator().manual_seed(unit["seed"])
    noise = torch.rand(logits.shape, dtype=torch.float64, generator=generator)
    got = gumbel_argmax(logits.flatten(0, -2), noise.flatten(0, -2), unit["temperature"])
    assert got.view(logits.shape[:-1]).tolist() == unit["argmax"]


@pytest.mark.parametrize("unit", [u for u in UNITS if u["fn"].startswith("fast_dllm.")], ids=str)
def test_transfer_rules(unit):
    logits = golden.tensors("units")[unit["logits"]][0]
    open_ = (torch.tensor(unit["x"][0]) == unit["mask_id"]).nonzero()[:, 0]
    token = logits.argmax(-1)
    score = torch.softmax(logits.double(), -1).gather(1, token[:, None])[:, 0]
    if "factor" in unit:
        strategy = Factor(factor=unit["factor"])
    elif unit["threshold"] is not None:
        strategy = Threshold(threshold=unit["threshold"])
    else:
        strategy = Quota()
    at = open_positions([0] * len(open_), [unit.get("num_transfer_tokens") or 0])
    ranked = rank(score[open_], at)
    count = strategy.count(ranked, at)
    taken = torch.zeros(len(token), dtype=torch.bool)
    taken[open_] = ranked.rank_N < count
    assert taken.tolist() == unit["transfer"][0]
    assert token[taken].tolist() == torch.tensor(unit["x0"][0])[taken].tolist()


CASES = json.loads((golden.FOLDER / "freedave.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_drafts_make_the_forwards_of_freedave(case, monkeypatch):
    monkeypatch.setitem(drafts.IDLE_TOKENS, "cpu", 10**6)
    threshold = case["confidence_threshold"]
    fields = {
        "gen_length": case["max_gen_length"],
        "block_length": case["block_length"],
        "cache": "dual" if case["dual_cache"] else "prefix",
        "draft_steps": case["draft_steps"] - 1,  # the first of its states is no draft
    }
    if threshold is not None:
        fields["threshold"] = threshold
    request = Request("0", "generate", case["prompt"], decoding=fields)
    (sample,) = golden.model("llada").loaded.generate([request])
    assert sample.error is None
    assert sample.answer.tokens == case["answer"]
    assert sample.answer.nfe <= case["forwards_without"]
    assert sample.answer.nfe == case["forwards"]
