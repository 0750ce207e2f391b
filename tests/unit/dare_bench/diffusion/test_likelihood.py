"""Likelihood estimators: exact against brute force, Monte Carlo and those of fewer passes against exact, errors as
large as they claim."""

from __future__ import annotations

import math
from itertools import product

import golden
import pytest
import torch
from brute_force import CONTEXT as GIVEN
from brute_force import TARGET as SCORED
from brute_force import scored

from dare_bench.diffusion.controlled import (
    canonical,
    combine_controlled,
    controlled_masks,
    controlled_passes,
)
from dare_bench.diffusion.likelihood import combine, draw, enumerate_masks, folded, reference_masks
from dare_bench.errors import DecodingError, PromptError
from dare_bench.types import LoopStats, Request

CONTEXT, TARGET = [13, 14, 46, 74], [96, 98, 5, 105]


def brute_force(context, target):
    """E_k (n/k) E_{|M|=k} sum of losses, one mask after another, through model.logits."""
    model, n = golden.model(), len(target)
    total = 0.0
    for code in range(1, 1 << n):
        mask = [bool(code >> i & 1) for i in range(n)]
        canvas = context + [model.spec.mask_id if m else t for m, t in zip(mask, target, strict=True)]
        logp = torch.log_softmax(model.logits(canvas)[len(context) :].double(), -1)
        k = sum(mask)
        losses = sum(logp[i, t].item() for i, t in enumerate(target) if mask[i])
        total += losses * n / k / n / math.comb(n, k)
    return total


def test_exact_is_the_bound_by_enumeration():
    result = golden.model().loglikelihood([(CONTEXT, TARGET)], estimator="exact")[0]
    assert result.value == pytest.approx(brute_force(CONTEXT, TARGET), abs=1e-4)
    assert (result.stderr, result.draws, result.estimator, result.target_tokens) == (0.0, 15, "exact", 4)


@pytest.mark.parametrize("n", range(1, 8))
def test_weights_of_an_enumeration_count_every_token_once(n):
    """For a model that ignores context the bound is the sum of log p: each token's weights sum to 1."""
    draws = enumerate_masks(n)
    assert len(draws.weights_M) == 2**n - 1
    per_token = (draws.weights_M[:, None] * draws.masks_Mn).sum(0)
    assert torch.allclose(per_token, torch.ones(n, dtype=torch.float64))


def test_reference_draws_are_unbiased_and_their_error_is_right():
    """64 repetitions with other seeds: the mean agrees with the enumeration, the spread with the stated error."""
    exact = golden.model().loglikelihood([(CONTEXT, TARGET)], estimator="exact")[0].value
    requests = [
        Request(str(i), "score", CONTEXT, TARGET, {"estimator": "reference", "mc_num": 64, "batch_size": 8}, seed=i)
        for i in range(64)
    ]
    result = [s.answer for s in golden.model().loaded.score(requests)]
    values = torch.tensor([f.value for f in result], dtype=torch.float64)
    stated = torch.tensor([f.stderr for f in result], dtype=torch.float64).pow(2).mean().sqrt()
    assert abs(values.mean() - exact) < 4 * values.std() / 8
    assert 0.7 < stated / values.std() < 1.4


def test_one_token_targets_take_one_pass_and_share_it():
    """The four letters of a question look at the same masked position: one forward row serves all."""
    model = golden.model()
    result = model.loglikelihood([(CONTEXT, [t]) for t in (1, 2, 3, 4)])
    logp = torch.log_softmax(model.logits([*CONTEXT, model.spec.mask_id])[-1], -1)
    assert [f.value for f in result] == pytest.approx([logp[t].item() for t in (1, 2, 3, 4)], abs=1e-4)
    assert all(f.draws == 1 and f.stderr == 0 for f in result)
    requests = [Request(str(t), "score", CONTEXT, [t]) for t in (1, 2, 3, 4)]
    stats = LoopStats()
    list(model.loaded.score(requests, stats=stats))
    assert stats.row_forwards == 1


def test_values_do_not_depend_on_neighbors_or_order():
    model = golden.model()
    pairs = [(CONTEXT, list(range(3, 3 + n))) for n in (1, 2, 5, 9, 12)] + [([7], [8, 9]), ([], [5, 6, 7])]
    alone = [model.loglikelihood([pair], seed=5)[0] for pair in pairs]
    for rows in (1, 7, None):
        together = model.loglikelihood(pairs[::-1], seed=5, max_rows=rows)[::-1]
        assert [f.value for f in together] == pytest.approx([f.value for f in alone], abs=2e-3, rel=1e-6)
        assert [f.is_greedy for f in together] == [f.is_greedy for f in alone]


def test_greedy_is_asked_for_by_the_engine_only_when_needed():
    request = Request("0", "score", CONTEXT, TARGET)
    assert next(iter(golden.model().loaded.score([request]))).answer.is_greedy is None


def test_greedy_is_decoded_unless_only_values_are_wanted():
    model = golden.model()
    answer = model.generate([CONTEXT], gen_length=4, steps=4, block_length=4)[0].tokens
    pairs = [(CONTEXT, answer), (CONTEXT, TARGET)]
    both, values = model.loglikelihood(pairs), model.loglikelihood(pairs, want_greedy=False)
    assert [f.is_greedy for f in both] == [True, False] and [f.is_greedy for f in values] == [None, None]
    assert [f.value for f in both] == [f.value for f in values]
    assert (both[0].nfe, values[0].nfe) == (15 + 4, 15)


def test_targets_that_cannot_be_scored():
    model = golden.model()
    with pytest.raises(PromptError, match="adds no tokens"):
        model.loglikelihood([(CONTEXT, [])])
    with pytest.raises(PromptError, match="the model's context limit is 256"):
        model.loglikelihood([([1] * 255, [1, 2])])
    with pytest.raises(DecodingError, match="n=8 tokens, and at most 7 are allowed"):
        enumerate_masks(8)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"estimator": "best"}, "estimators are auto, exact, reference"),
        (
            {"mc_num": 10, "batch_size": 4},
            "mc_num=10 must be a multiple of batch_size=4; give batch_size=2 or mc_num=12",
        ),
        ({"mcnum": 10}, "likelihood field 'mcnum' is not known here"),
        ({"mc_num": 1.5}, "must be a whole number"),
    ],
)
def test_fields_are_checked(fields, says):
    with pytest.raises(DecodingError, match=says):
        golden.model().loglikelihood([(CONTEXT, TARGET)], **fields)


def test_counts_of_a_round_cover_every_count_once():
    """n draws around a random start are each of 1..n once: the stratification of the published estimator."""
    for seed in range(20):
        draws = reference_masks(9, 9, 9, torch.Generator().manual_seed(seed))
        assert sorted(draws.masks_Mn.sum(1).tolist()) == list(range(1, 10))


def test_choices_of_one_document_share_their_masks():
    settings = {"estimator": "auto", "mc_num": 32, "batch_size": 16}
    assert torch.equal(draw(11, settings, 77).masks_Mn, draw(11, settings, 77).masks_Mn)
    assert not torch.equal(draw(11, settings, 77).masks_Mn, draw(11, settings, 78).masks_Mn)


def test_tiers_and_passes():
    """Enumerations are exact; draws of our own stream are the same distribution. Equal canvases count once."""
    model = golden.model()
    exact, drawn = model.loglikelihood([(CONTEXT, TARGET), (CONTEXT, list(range(3, 13)))])
    assert (exact.tier, drawn.tier) == ("E1", "E2")
    item = model.loglikelihood([(CONTEXT, [5])], estimator="reference", want_greedy=True)[0]
    assert (item.draws, item.tier, item.stderr) == (128, "E1", 0.0)
    assert item.nfe == 2  # one canvas, and one forward to see whether it is greedy


def test_error_of_a_single_round_comes_from_its_draws():
    draws = reference_masks(5, 16, 16, torch.Generator().manual_seed(0))
    loss_M = torch.rand(16, generator=torch.Generator().manual_seed(1))
    value, deviations_R = combine(draws, loss_M)
    terms_M = 16 * draws.weights_M * loss_M
    assert value == pytest.approx(-float(terms_M.mean()))
    assert float(deviations_R.norm()) == pytest.approx(float(terms_M.std()) / 4)


def test_folded_deviations_keep_errors_and_products():
    """Of 300 pairs of targets, with deviations that correlate."""
    generator = torch.Generator().manual_seed(3)
    shared, own = torch.randn((2, 300, 127), generator=generator, dtype=torch.float64)
    ratios = []
    for one, other in zip(shared, 0.5 * shared + own, strict=True):
        short, short_other = folded(one), folded(other)
        assert len(short) == 16 and float(short.norm()) == pytest.approx(float(one.norm()))
        ratios.append(float((short - short_other).norm() / (one - other).norm()) ** 2)
    assert sum(ratios) / len(ratios) == pytest.approx(1, abs=0.05)
    assert torch.equal(folded(shared[0, :16]), shared[0, :16]) and not folded(torch.zeros(40)).any()


def table(n, informative, noise=1.0):
    """Losses of masked tokens for every mask of n tokens, with interactions between tokens; [2^n, n]."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.tensor(list(product([0, 1], repeat=n))).flip(1).double()  # row i is the mask with the bits of i
    own, pairs = 3 * torch.rand(n, generator=generator), torch.randn((n, n), generator=generator)
    losses = own + 0.3 * noise * codes @ pairs.double() + 2 * codes.mean(1, keepdim=True)
    losses = losses + 0.5 * noise * torch.randn(losses.shape, generator=generator, dtype=torch.float64)
    if not informative:
        losses[-1] = 30 * torch.rand(n, generator=generator, dtype=torch.float64)
    return losses * codes


def estimates(losses, n, mc_num, estimator, keys):
    """Values and errors over keys, and the bound by enumeration."""
    powers = 2 ** torch.arange(n)
    values = []
    for key in range(keys):
        part = controlled_masks(n, mc_num, estimator, key)
        value, deviations_R = combine_controlled([part], [losses[part.masks_Mn.long() @ powers]])
        values.append((value, float(deviations_R.norm())))
    every = enumerate_masks(n)
    truth = -float(every.weights_M @ losses[every.masks_Mn.long() @ powers].sum(1))
    values_K, errors_K = torch.tensor(values, dtype=torch.float64).T
    return values_K, errors_K, truth


@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("estimator", ["sizes", "pairs", "control", "fast"])
def test_the_expected_value_is_the_bound_and_the_error_is_right(estimator, informative):
    values, errors, truth = estimates(table(6, informative), 6, 8, estimator, 500)
    assert abs(values.mean() - truth) < 4 * values.std() / len(values) ** 0.5
    assert 0.85 < errors.square().mean().sqrt() / values.std() < 1.15


@pytest.mark.parametrize(("informative", "most"), [(True, 0.9), (False, 1.15)])
def test_the_control_helps_where_it_can_and_costs_little_where_not(informative, most):
    losses = table(7, informative, 0.3)
    without, _, _ = estimates(losses, 7, 16, "sizes+pairs", 300)
    controlled, _, _ = estimates(losses, 7, 16, "fast", 300)
    assert controlled.std() < most * without.std()


@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("llada", {}),
        ("dream", {}),
        ("sdar", {"block_length": 6}),
        ("sdar_moe", {"block_length": 6}),
        ("llada2", {"block_length": 6}),
        ("fast_dllm_v2", {"block_length": 6}),
    ],
)
def test_every_family_is_unbiased(family, fields):
    """300 keys against the enumeration. Blocks share the clean prefix, and draws of all keys equal canvases."""
    target = SCORED[:6]
    model = golden.model(family)
    exact = model.loglikelihood([(GIVEN, target)], want_greedy=False, **fields)[0].value  # auto
    settings = {"estimator": "fast", "mc_num": 4, **fields}
    requests = [Request(str(i), "score", GIVEN, target, settings, seed=i) for i in range(300)]
    answers, stats = scored(family, requests)
    values = torch.tensor([answer.value for answer in answers], dtype=torch.float64)
    errors = torch.tensor([answer.stderr for answer in answers], dtype=torch.float64)
    assert abs(values.mean() - exact) < 4 * values.std() / 300**0.5 + 1e-4
    assert 0.85 < errors.square().mean().sqrt() / values.std() < 1.15
    assert {(answer.estimator, answer.draws, answer.tier) for answer in answers} == {("fast", 5, "E2")}
    assert stats.row_forwards < 300


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2", "fast_dllm_v2"])
def test_values_do_not_depend_on_batch_order_or_neighbors(family):
    """So neither on shards nor on where a killed run goes on."""
    fields = {"estimator": "fast", "mc_num": 4}
    fields |= {} if family in ("llada", "dream") else {"block_length": 6}
    requests = [
        Request(str((i, n)), "score", GIVEN, (SCORED * 3)[:n], fields, seed=i) for i in range(3) for n in (2, 6, 14)
    ]
    alone = [scored(family, [request])[0][0] for request in requests]
    for rows in (1, 5, None):
        together, _ = scored(family, requests[::-1], rows)
        assert [a.value for a in together[::-1]] == pytest.approx([a.value for a in alone], abs=1e-4)
    for request, answer in zip(requests, alone, strict=True):
        assert answer.nfe <= golden.model(family).loaded.forwards(request)


def test_choices_share_their_masks_also_where_lengths_differ():
    """Draws of one key over more tokens hide about the same ones of those that they have in common."""
    short, long = controlled_masks(20, 16, "fast", 5), controlled_masks(22, 16, "fast", 5)
    alike = (short.masks_Mn == long.masks_Mn[:, :20]).double().mean()
    other = (short.masks_Mn == controlled_masks(22, 16, "fast", 6).masks_Mn[:, :20]).double().mean()
    assert alike > 0.9 > 0.8 > other


def test_short_targets_are_enumerated():
    part = controlled_masks(4, 16, "fast", 0)
    assert part.estimator == "exact" and len(part.masks_Mn) == controlled_passes(4, 16, "fast") == 15
    assert controlled_passes(5, 16, "fast") == 17 and len(controlled_masks(5, 16, "fast", 0).masks_Mn) == 17
    answer = golden.model().loglikelihood([(GIVEN, SCORED[:4])], estimator="fast", want_greedy=False)[0]
    assert (answer.estimator, answer.stderr, answer.nfe, answer.tier) == ("exact", 0.0, 15, "E1")


def test_settings_name_the_estimator_and_no_unused_field():
    resolve = golden.model().loaded.resolve_likelihood
    assert resolve({"estimator": "fast"}) == {"estimator": "fast", "mc_num": 16, "cfg_scale": 0.0}
    assert resolve({"estimator": "control+pairs+sizes"}) == resolve({"estimator": "fast"})
    assert canonical("control+pairs") == "pairs+control"


@pytest.mark.parametrize(
    ("family", "fields", "says"),
    [
        (
            "llada",
            {"estimator": "pairs+best"},
            "'pairs.best' is not known; estimators are auto, exact, reference, fast, adaptive",
        ),
        (
            "llada",
            {"estimator": "fast", "batch_size": 4},
            "'batch_size' is not known here; fields are estimator, mc_num",
        ),
        ("llada", {"estimator": "fast", "mc_num": 6}, "mc_num=6 must be a multiple of 4 .* give mc_num=8"),
        ("dream", {"estimator": "sizes", "mc_num": 3}, "mc_num=3 must be a multiple of 2 .* give mc_num=4"),
        ("sdar", {"estimator": "fast", "mc_num": 0}, "mc_num=0 must be"),
        ("dream", {"estimator": "fast", "log_type": "btf"}, "belongs to estimator='reference', not to 'fast'"),
    ],
)
def test_fields_of_controlled_estimators_are_checked(family, fields, says):
    with pytest.raises(DecodingError, match=says) as caught:
        golden.model(family).loglikelihood([(GIVEN, SCORED)], **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["sdar", "fast_dllm_v2"])
def test_the_chain_of_a_block_is_its_decoding_from_left_to_right(family):
    """Each token given all before it, with the rest of its block masked."""
    model, whole, value = golden.model(family), GIVEN + SCORED, 0.0
    for i in range(len(GIVEN), len(whole)):
        end = min((i // 4 + 1) * 4, len(whole))
        canvas = whole[:i] + [model.spec.mask_id] * (end - i)
        logits = model.logits(canvas, block_length=4).double()
        value += float(torch.log_softmax(logits, -1)[i, whole[i]])
    request = Request("0", "score", GIVEN, SCORED, {"estimator": "chain", "block_length": 4})
    answer = scored(family, [request])[0][0]
    assert answer.value == pytest.approx(value, abs=1e-4)
    assert (answer.estimator, answer.stderr, answer.tier) == ("chain", 0.0, "E1")
    assert answer.nfe <= model.loaded.forwards(request) == 1 + len(SCORED)
