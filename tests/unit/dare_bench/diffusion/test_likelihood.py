"""Likelihood estimators: exact against brute force, Monte Carlo against exact, errors as large as they claim."""

from __future__ import annotations

import math

import golden
import pytest
import torch

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
