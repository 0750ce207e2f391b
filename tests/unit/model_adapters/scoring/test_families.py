"""Likelihoods of the block-causal families against brute force; fields and greedy flags of every family."""

from __future__ import annotations

import golden
import pytest
import torch
from brute_force import CONTEXT, TARGET, bound, masked_loss, scored

from dare_bench.diffusion.likelihood import (
    block_masks,
    block_spans,
    combine_blocks,
    enumerate_blocks,
    level_counts,
    stratified_levels,
)
from dare_bench.errors import DecodingError, PromptError
from dare_bench.types import Request

BLOCKED = ("sdar", "sdar_moe", "llada2", "fast_dllm_v2")


def block_bound(family, context, target, b):
    whole, total = context + target, 0.0
    for low in range(len(context) // b * b, len(whole), b):
        columns = range(max(low, len(context)), min(low + b, len(whole)))
        total += bound(family, whole[: low + b], list(columns), b)
    return total


# -- block by block ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", BLOCKED)
@pytest.mark.parametrize("context", [0, 3, 4, 6])
def test_exact_is_the_sum_of_the_blocks_bounds(family, context):
    """Wherever the target begins on the grid: blocks of 4, whole, begun by the context, or cut by the end."""
    result = golden.model(family).loglikelihood([(CONTEXT[:context], TARGET)], estimator="exact", block_length=4)[0]
    assert result.value == pytest.approx(block_bound(family, CONTEXT[:context], TARGET, 4), abs=1e-4)
    assert (result.stderr, result.estimator, result.tier) == (0.0, "exact", "E1")
    sizes = [len(span) for span in block_spans(context, len(TARGET), 4)]
    assert result.draws == sum(2**s - 1 for s in sizes)


@pytest.mark.parametrize("family", BLOCKED)
def test_reference_draws_equal_plain_recomputation(family):
    """Each (draw, block) as a full block-causal forward of the clean blocks before it and the masked one."""
    whole, b = CONTEXT + TARGET, 5
    result = golden.model(family).loglikelihood(
        [(CONTEXT, TARGET)], estimator="reference", mc_num=6, block_length=b, seed=3
    )[0]
    value = 0.0
    for part in block_masks(block_spans(len(CONTEXT), len(TARGET), b), 6, 3):
        first = len(CONTEXT) + part.start
        for mask, weight in zip(part.masks_Mn, part.weights_M.tolist(), strict=True):
            at = [first + i for i in mask.nonzero()[:, 0].tolist()]
            value -= weight * masked_loss(family, whole[: (first // b + 1) * b], at, b)
    assert result.value == pytest.approx(value, abs=1e-4)
    assert (result.draws, result.estimator, result.tier) == (6, "reference", "E2")
    assert result.stderr > 0


@pytest.mark.parametrize("case", golden.cases("fast_dllm_v2")["likelihood"], ids=lambda c: str(len(c["context"])))
def test_fast_dllm_v2_scores_the_first_token_as_its_evaluation_does(case):
    settings = {"estimator": "reference", "nll_type": "first_token"}
    model = golden.model("fast_dllm_v2")
    result = model.loglikelihood([(case["context"], case["target"])], **settings)[0]
    assert result.value == pytest.approx(case["value"], abs=1e-4)
    assert (result.stderr, result.tier, result.draws) == (0.0, "E1", 1)
    request = Request("0", "score", case["context"], case["target"], settings, want_greedy=True)
    assert scored("fast_dllm_v2", [request])[0][0].nfe <= model.loaded.forwards(request)


def test_blocks_of_one_token_are_the_chain_rule():
    """Token by token given the clean ones before it; nothing is random any more."""
    whole = CONTEXT + TARGET
    chain = -sum(masked_loss("sdar", whole[: i + 1], [i], 1) for i in range(len(CONTEXT), len(whole)))
    for estimator in ("exact", "reference"):
        result = golden.model("sdar").loglikelihood([(CONTEXT, TARGET)], estimator=estimator, block_length=1)[0]
        assert result.value == pytest.approx(chain, abs=1e-4)
        assert (result.stderr, result.tier) == (0.0, "E1")


def test_one_block_over_all_is_the_plain_bound():
    """A block as long as everything sees everything: the bound of masked diffusion."""
    pair = CONTEXT, TARGET[:5]
    result = golden.model("llada2").loglikelihood([pair], estimator="exact", want_greedy=True)[0]
    whole = CONTEXT + TARGET[:5]
    assert result.value == pytest.approx(bound("llada2", whole, range(6, 11)), abs=1e-4)
    assert result.nfe == 31 + 32 - 6  # no clean pass; greedy decoding fills the block of 32 one by one


def test_auto_is_exact_while_every_block_is_short():
    model = golden.model("sdar")
    long = list(range(3, 23))
    assert model.loglikelihood([(CONTEXT, long)])[0].estimator == "exact"
    assert model.loglikelihood([(CONTEXT, long)], block_length=7)[0].estimator == "exact"
    assert model.loglikelihood([(CONTEXT, long)], block_length=8, mc_num=4)[0].estimator == "reference"
    with pytest.raises(
        PromptError, match=r"with block_length=8 a block holds s=8 target tokens, and at most 7 are allowed"
    ):
        model.loglikelihood([(CONTEXT, long)], block_length=8, estimator="exact")


@pytest.mark.parametrize(("context", "target", "b"), [(0, 1, 4), (3, 1, 4), (3, 9, 4), (8, 8, 4), (5, 40, 32)])
def test_spans_cover_the_target_on_the_grid(context, target, b):
    spans = block_spans(context, target, b)
    assert [i for span in spans for i in span] == list(range(target))
    assert all((context + span.start) // b == (context + span.stop - 1) // b for span in spans)
    assert len(spans) == len({(context + i) // b for i in range(target)})


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_every_count_is_equally_likely(size):
    """Over all offsets of a fine grid, each (draw, block) cell masks 1..s tokens equally often: with a uniform subset
    and weight s / k that is the bound itself."""
    draws, blocks, fine = 3, 2, 120
    seen = torch.stack([level_counts(stratified_levels(draws, blocks, (i + 0.5) / fine), size) for i in range(fine)])
    for b in range(blocks):
        assert (
            torch.bincount(seen[:, :, b].flatten(), minlength=size + 1).tolist() == [0] + [draws * fine // size] * size
        )


@pytest.mark.parametrize("offset", [0.0, 0.37, 0.999])
def test_levels_of_a_block_are_an_even_grid(offset):
    """Each block alone is stratified, not only all cells together; k is each of 1..s once where s = draws."""
    levels_NB = stratified_levels(6, 4, offset)
    for b in range(4):
        steps = levels_NB[:, b].sort().values.diff()
        assert torch.allclose(steps, torch.full((5,), 1 / 6, dtype=torch.float64))
        assert sorted(level_counts(levels_NB[:, b], 6).tolist()) == [1, 2, 3, 4, 5, 6]


def test_masks_have_their_counts_and_every_token_its_share():
    """Weights s / k and uniform subsets: over many keys, each token's weights sum to 1 as in the enumeration."""
    spans = block_spans(2, 9, 4)  # 2, 4 and 3 tokens
    shares = []
    for key in range(300):
        parts = block_masks(spans, 8, key)
        for part, span in zip(parts, spans, strict=True):
            counts = part.masks_Mn.sum(1)
            assert torch.allclose(part.weights_M * 8 * counts, torch.full((8,), float(len(span)), dtype=torch.float64))
            assert counts.min() >= 1
        shares.append(torch.cat([(p.weights_M[:, None] * p.masks_Mn).sum(0) for p in parts]))
    mean = torch.stack(shares).mean(0)
    assert torch.allclose(mean, torch.ones(9, dtype=torch.float64), atol=0.08)
    for part in enumerate_blocks(spans, 4):
        share = (part.weights_M[:, None] * part.masks_Mn).sum(0)
        assert torch.allclose(share, torch.ones_like(share))


def test_block_draws_are_unbiased_and_their_error_is_right():
    """64 repetitions with other keys: their mean agrees with the enumeration, their spread with the stated error."""
    target = [*TARGET, 61, 2, 18]
    exact = golden.model("sdar").loglikelihood([(CONTEXT, target)], estimator="exact", block_length=5)[0].value
    fields = {"estimator": "reference", "mc_num": 16, "block_length": 5}
    requests = [Request(str(i), "score", CONTEXT, target, fields, seed=i) for i in range(64)]
    result, _ = scored("sdar", requests)
    values = torch.tensor([f.value for f in result], dtype=torch.float64)
    stated = torch.tensor([f.stderr for f in result], dtype=torch.float64).pow(2).mean().sqrt()
    assert abs(values.mean() - exact) < 4 * values.std() / 8
    assert 0.6 < stated / values.std() < 1.7


def test_error_of_blocks_comes_from_neighboring_draws():
    """What the level alone explains is no error: the grid has no chance in it."""
    spans = block_spans(0, 4, 4)
    parts = block_masks(spans, 64, 1)
    even = parts[0].masks_Mn.sum(1).double()  # the same loss a token: each draw is worth s
    value, deviations_R = combine_blocks(parts, [even])
    assert (value, float(deviations_R.norm())) == (pytest.approx(-4.0), pytest.approx(0.0, abs=1e-12))
    noise = torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert combine_blocks(parts, [even * (1 + noise)])[1].norm() > 0
    assert combine_blocks(block_masks(spans, 1, 1), [even[:1]])[1].isnan().all()


# -- greedy ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "sampler"),
    [
        ("sdar", {"remasking_strategy": "low_confidence_static", "temperature": 0.0}),
        ("llada2", {"threshold": 1.0, "eos_early_stop": False, "text_after_eos": "keep"}),
        ("fast_dllm_v2", {"threshold": 1.0}),
    ],
)
@pytest.mark.parametrize("b", [4, 8])
def test_block_greedy_is_the_sampler_one_token_a_step(family, sampler, b):
    """On the same grid: the answer of the family's own sampler is greedy, another token in it is not."""
    model = golden.model(family)
    target = model.generate([CONTEXT], gen_length=8, block_length=b, early_stop=False, eos_id=(), **sampler)[0].tokens
    assert len(target) == 8
    wrong = [*target[:3], (target[3] + 1) % 100, *target[4:]]
    pairs = [(CONTEXT, target), (CONTEXT, wrong), (CONTEXT, target[:2])]
    result = model.loglikelihood(pairs, block_length=b, estimator="reference", mc_num=2)
    assert [f.is_greedy for f in result[:2]] == [True, False]


# -- fields ------------------------------------------------------------------------------------------------------------


def test_all_values_that_hold_are_named():
    assert golden.model("sdar").loaded.resolve_likelihood({"mc_num": 9, "estimator": None}) == {
        "estimator": "auto",
        "mc_num": 9,
        "block_length": 4,
    }
    assert golden.model("llada2").loaded.resolve_likelihood({})["block_length"] == 32
    assert set(golden.model("llada").loaded.resolve_likelihood({})) == {
        "estimator",
        "mc_num",
        "batch_size",
        "cfg_scale",
    }
    assert golden.model("dream").loaded.resolve_likelihood({"nll_type": "ar_ftb", "estimator": "reference"}) == {
        "estimator": "reference",
        "nll_type": "ar_ftb",
        "log_type": "ftb",
        "mc_num": 128,
        "batch_size": 16,
        "sampling_eps": 1e-3,
        "classifier_free_guidance": 1.0,
    }


@pytest.mark.parametrize(
    ("family", "fields", "says"),
    [
        ("sdar", {"cfg_scale": 1.0}, "'cfg_scale' is not known here; fields are estimator, mc_num, block_length"),
        ("sdar", {"block_length": 0}, "block_length=0 must be at least 1"),
        ("sdar", {"block_length": 2.0}, "block_length=2.0 must be a whole number"),
        ("llada2", {"mc_num": 0}, "mc_num=0 must be at least 1"),
        ("llada2", {"estimator": "mc"}, "estimators are auto, exact, reference"),
        ("fast_dllm_v2", {"nll_type": "mc"}, "nll_type='mc' is not known; nll_types are blocks, first_token"),
        ("fast_dllm_v2", {"nll_type": "first_token"}, "belongs to estimator='reference', not to 'auto'"),
        ("dream", {"block_length": 4}, "fields are estimator, nll_type, log_type, mc_num, batch_size, sampling_eps"),
        ("dream", {"nll_type": "ar"}, "nll_type='ar' is not known; nll_types are mc, ar_ftb, ar_btf"),
        ("dream", {"log_type": "both"}, "log_types are ftb, btf, union"),
        ("dream", {"log_type": "btf"}, "belongs to estimator='reference', not to 'auto'"),
        ("dream", {"estimator": "reference", "nll_type": "ar_ftb", "log_type": "union"}, "needs nll_type='mc'"),
        ("dream", {"mc_num": 0}, "mc_num=0 and batch_size=16 must be at least 1"),
        ("dream", {"sampling_eps": "small"}, "sampling_eps='small' must be a number"),
        ("dream", {"classifier_free_guidance": 0.5}, "must be a number, at least 1 and below inf"),
        (
            "dream",
            {"estimator": "reference", "log_type": "union", "classifier_free_guidance": 2.0},
            "needs something given",
        ),
    ],
)
def test_fields_are_checked(family, fields, says):
    with pytest.raises(DecodingError, match=says) as caught:
        golden.model(family).loglikelihood([(CONTEXT, TARGET)], **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2"])
def test_forwards_are_bounded_beforehand(family):
    for fields in ({}, {"estimator": "reference", "mc_num": 16}):
        for context in (CONTEXT, []):
            request = Request("0", "score", context, TARGET, fields, want_greedy=True)
            result, _ = scored(family, [request])
            assert result[0].nfe <= golden.model(family).loaded.forwards(request)
