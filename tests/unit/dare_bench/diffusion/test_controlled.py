"""The estimators of fewer passes: unbiased against enumeration, errors as large as they claim, never much worse."""

from __future__ import annotations

from itertools import product

import golden
import pytest
import torch
from brute_force import CONTEXT, TARGET, scored

from dare_bench.diffusion.controlled import (
    canonical,
    combine_controlled,
    controlled_masks,
    controlled_passes,
)
from dare_bench.diffusion.likelihood import enumerate_masks
from dare_bench.errors import DecodingError
from dare_bench.types import Request


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
    target = TARGET[:6]
    model = golden.model(family)
    exact = model.loglikelihood([(CONTEXT, target)], want_greedy=False, **fields)[0].value  # auto
    settings = {"estimator": "fast", "mc_num": 4, **fields}
    requests = [Request(str(i), "score", CONTEXT, target, settings, seed=i) for i in range(300)]
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
        Request(str((i, n)), "score", CONTEXT, (TARGET * 3)[:n], fields, seed=i) for i in range(3) for n in (2, 6, 14)
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
    answer = golden.model().loglikelihood([(CONTEXT, TARGET[:4])], estimator="fast", want_greedy=False)[0]
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
def test_fields_are_checked(family, fields, says):
    with pytest.raises(DecodingError, match=says) as caught:
        golden.model(family).loglikelihood([(CONTEXT, TARGET)], **fields)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["sdar", "fast_dllm_v2"])
def test_the_chain_of_a_block_is_its_decoding_from_left_to_right(family):
    """Each token given all before it, with the rest of its block masked."""
    model, whole, value = golden.model(family), CONTEXT + TARGET, 0.0
    for i in range(len(CONTEXT), len(whole)):
        end = min((i // 4 + 1) * 4, len(whole))
        canvas = whole[:i] + [model.spec.mask_id] * (end - i)
        logits = model.logits(canvas, block_length=4).double()
        value += float(torch.log_softmax(logits, -1)[i, whole[i]])
    request = Request("0", "score", CONTEXT, TARGET, {"estimator": "chain", "block_length": 4})
    answer = scored(family, [request])[0][0]
    assert answer.value == pytest.approx(value, abs=1e-4)
    assert (answer.estimator, answer.stderr, answer.tier) == ("chain", 0.0, "E1")
    assert answer.nfe <= model.loaded.forwards(request) == 1 + len(TARGET)
