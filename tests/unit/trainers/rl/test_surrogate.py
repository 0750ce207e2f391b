"""The parts of a policy-gradient loss that do not look at the model: advantages, clipped ratios, KL, aggregation;
and a reference that follows the policy."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dare_bench.errors import TrainingError
from dare_bench.trainers.objective import averages
from dare_bench.trainers.reference_policy import FILE, ReferenceSync
from dare_bench.trainers.rl.surrogate import (
    Aggregation,
    action_weights,
    advantages,
    clip_metrics,
    clipped,
    divergence,
)

KINDS = ("standardized", "mean", "leave_one_out")
REWARD = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.3, 0.3, 0.1, 0.2], dtype=torch.float64)
"""Two groups of four."""


def gradient(function, *values):
    """The derivative of the sum of ``function`` at a vector."""
    at = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(function(at).sum(), at)[0].tolist()


# Advantages


@pytest.mark.parametrize("kind", KINDS)
def test_advantages_of_a_group_sum_to_zero_and_keep_the_order_of_rewards(kind):
    advantage_PG = advantages(REWARD, 4, kind).view(2, 4)
    torch.testing.assert_close(advantage_PG.sum(1), torch.zeros(2, dtype=torch.float64))
    assert torch.equal(advantage_PG.argsort(dim=1, stable=True), REWARD.view(2, 4).argsort(dim=1, stable=True))
    assert float(advantage_PG.abs().sum(1).min()) > 0


def test_standardized_advantages_do_not_depend_on_scale_and_offset():
    wanted = advantages(REWARD, 4)
    torch.testing.assert_close(advantages(3.0 * REWARD + 7.0, 4), wanted, rtol=1e-4, atol=0)
    torch.testing.assert_close(advantages(-REWARD, 4), -wanted, rtol=1e-9, atol=0)
    group = REWARD[:4]
    torch.testing.assert_close(wanted[:4], (group - group.mean()) / (group.std() + 1e-6))


@pytest.mark.parametrize("kind", ["mean", "leave_one_out"])
def test_centered_advantages_scale_with_the_reward(kind):
    torch.testing.assert_close(advantages(3.0 * REWARD + 7.0, 4, kind), 3.0 * advantages(REWARD, 4, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_completions_without_a_reward_do_not_count_in_their_group(kind):
    reward = torch.tensor([1.0, math.nan, 0.0, 2.0, *REWARD[4:].tolist(), *[math.nan] * 3, 5.0], dtype=torch.float64)
    scored = advantages(torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64), 3, kind).tolist()
    wanted = [scored[0], 0.0, *scored[1:], *advantages(REWARD[4:], 4, kind).tolist(), 0.0, 0.0, 0.0, 0.0]
    assert advantages(reward, 4, kind).tolist() == wanted and any(scored)


def test_clips_are_counted_by_side_with_the_extremes_of_the_ratios():
    log_ratio_A = torch.tensor([0.5, -0.5, 0.1, 1.0, 0.0], dtype=torch.float64)
    _, active_A = clipped(log_ratio_A, torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0], dtype=torch.float64), 0.2, 0.2, 2.0)
    metrics = clip_metrics(log_ratio_A, active_A, ratios=True)
    assert metrics.pop("ratio_min")[0] == math.exp(-0.5) and metrics.pop("ratio_max")[0] == math.exp(1.0)
    assert metrics == {"clip_fraction": (3.0, 5.0), "clip_low": (1.0, 5.0), "clip_high": (2.0, 5.0)}
    assert clip_metrics(log_ratio_A, active_A, ratios=False) == {"clip_fraction": (3.0, 5.0)}
    none = torch.zeros(0, dtype=torch.float64)
    assert clip_metrics(none, none.bool(), ratios=True)["clip_low"] == (0.0, 0.0)


def test_the_extremes_of_several_processes_are_those_of_all():
    parts = [{"ratio_min": (low, 1.0), "ratio_max": (high, 1.0)} for low, high in ((0.9, 1.1), (0.7, 1.0), (0.8, 1.3))]
    assert averages(parts) == {"ratio_min": 0.7, "ratio_max": 1.3}


def test_leave_one_out_is_the_reward_minus_the_mean_of_the_others():
    others = torch.stack([(REWARD[:4].sum() - r) / 3 for r in REWARD[:4]])
    torch.testing.assert_close(advantages(REWARD, 4, "leave_one_out")[:4], REWARD[:4] - others)
    torch.testing.assert_close(advantages(REWARD, 4, "leave_one_out"), 4 / 3 * advantages(REWARD, 4, "mean"))


@pytest.mark.parametrize("kind", KINDS)
@given(st.floats(-1e6, 1e6), st.integers(2, 9))
def test_equal_rewards_have_no_advantage_at_all(kind, reward, group):
    """Exactly zero, although the mean of equal floats may be another float."""
    assert advantages(torch.full((group,), reward, dtype=torch.float64), group, kind).tolist() == [0.0] * group


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_alone_has_no_advantage(kind):
    assert advantages(torch.tensor([0.7, 0.1]), 1, kind).tolist() == [0.0, 0.0]


# Clipped ratios


def test_at_ratio_one_the_loss_is_minus_the_advantage_and_its_gradient_is_reinforce():
    advantage_A = torch.tensor([1.5, -0.5, 0.0], dtype=torch.float64)
    for low, high, dual in ((0.2, 0.2, None), (0.2, 0.4, 3.0), (0.0, 0.0, None)):
        loss_A, active_A = clipped(torch.zeros(3, dtype=torch.float64), advantage_A, low, high, dual)
        assert torch.equal(loss_A, -advantage_A) and not bool(active_A.any())
        slope = gradient(lambda lr, a=(low, high, dual): clipped(lr, advantage_A, *a)[0], 0.0, 0.0, 0.0)
        assert slope == pytest.approx([-1.5, 0.5, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "is_clipped"),
    [
        (1.5, 1.0, -1.3, True),  # a good action is not pushed beyond 1 + high
        (1.5, -1.0, 1.5, False),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),  # a bad one not below 1 - low
        (1.2, 1.0, -1.2, False),
    ],
)
def test_the_clip_takes_the_gradient_where_the_ratio_has_moved_far_enough(ratio, advantage, loss, is_clipped):
    lr_A, advantage_A = torch.tensor([math.log(ratio)]).double(), torch.tensor([advantage]).double()
    loss_A, active_A = clipped(lr_A, advantage_A, 0.2, 0.3)
    assert loss_A.tolist() == pytest.approx([loss])
    assert active_A.tolist() == [is_clipped]
    slope = gradient(lambda lr: clipped(lr, advantage_A, 0.2, 0.3)[0], math.log(ratio))
    assert slope == pytest.approx([0.0 if is_clipped else -advantage * ratio])


def test_the_dual_clip_bounds_the_loss_of_negative_advantages_only():
    lr_A = torch.tensor([4.0, 4.0, 4.0]).double()
    advantage_A = torch.tensor([-2.0, 2.0, -2.0]).double()
    loss_A, active_A = clipped(lr_A, advantage_A, 0.2, 0.2, dual=3.0)
    assert loss_A.tolist() == pytest.approx([6.0, -2.4, 6.0])
    assert active_A.tolist() == [True, True, True]
    assert gradient(lambda lr: clipped(lr, advantage_A[:1], 0.2, 0.2, 3.0)[0], 4.0) == [0.0]
    below = torch.tensor([math.log(2.9)]).double()
    assert clipped(below, advantage_A[:1], 0.2, 0.2, 3.0)[0].item() == pytest.approx(5.8)


@pytest.mark.parametrize("advantage", [-1.0, 0.0, 1.0])
def test_huge_log_ratios_are_finite(advantage):
    values = (-1e6, -80.0, 80.0, 1e6)
    advantage_A = torch.full((4,), advantage, dtype=torch.float64)
    loss_A, _ = clipped(torch.tensor(values).double(), advantage_A, 0.2, 0.2)
    assert bool(loss_A.isfinite().all())
    assert all(map(math.isfinite, gradient(lambda lr: clipped(lr, advantage_A, 0.2, 0.2)[0], *values)))
    for kind in ("k1", "k2", "k3"):
        assert bool(divergence(torch.tensor(values).double(), kind).isfinite().all())
        assert all(map(math.isfinite, gradient(lambda lr, k=kind: divergence(lr, k), *values)))


# KL


@pytest.mark.parametrize("kind", ["k2", "k3"])
@given(st.floats(-30, 30))
def test_estimates_of_kl_are_not_negative(kind, log_ratio):
    value = divergence(torch.tensor([log_ratio], dtype=torch.float64), kind)
    assert value.item() >= 0
    assert value.item() > 0 or abs(log_ratio) < 1e-7


def test_at_equality_kl_is_zero_and_only_k1_has_a_gradient():
    zero = torch.zeros(1, dtype=torch.float64)
    assert [divergence(zero, kind).item() for kind in ("k1", "k2", "k3")] == [0.0, 0.0, 0.0]
    assert [gradient(lambda lr, k=kind: divergence(lr, k), 0.0) for kind in ("k1", "k2", "k3")] == [[1.0], [0.0], [0.0]]


def test_k1_and_k3_have_the_kl_as_their_expectation():
    """Over the policy's own distribution, by enumeration; k2 has not."""
    policy, reference = torch.tensor([0.7, 0.2, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    lr_V = (policy / reference).log()
    kl = float((policy * lr_V).sum())
    expected = {kind: float((policy * divergence(lr_V, kind)).sum()) for kind in ("k1", "k2", "k3")}
    assert expected["k1"] == pytest.approx(kl) and expected["k3"] == pytest.approx(kl)
    assert abs(expected["k2"] - kl) > 0.05 * kl


def test_k3_keeps_its_digits_near_equality():
    lr_A = torch.tensor([1e-7, -1e-7], dtype=torch.float64)
    torch.testing.assert_close(divergence(lr_A, "k3"), lr_A**2 / 2, rtol=1e-2, atol=0)


# Aggregation

CANVAS = 8
SAMPLE = torch.tensor([0] * 7 + [1] * 3 + [2])
TRANSITION = torch.tensor([0, 0, 1, 2, 2, 2, 3, 4, 4, 4, 5])
"""Eleven actions of three completions: of 4, 1 and 1 transitions."""


def weights(kind, chosen=(0, 1, 2)):
    """Of some completions, numbered again, as another process would hold them."""
    kept = torch.isin(SAMPLE, torch.tensor(chosen))
    sample_A = SAMPLE[kept].unique(return_inverse=True)[1]
    transition_A = TRANSITION[kept].unique(return_inverse=True)[1]
    return action_weights(kind, sample_A, transition_A, 3, len(SAMPLE), CANVAS)


@pytest.mark.parametrize("kind", get_args(Aggregation))
def test_weights_do_not_depend_on_the_division_among_processes(kind):
    whole_A = weights(kind)
    for division in (((0,), (1, 2)), ((0, 1), (2,)), ((0,), (1,), (2,))):
        assert torch.equal(torch.cat([weights(kind, chosen) for chosen in division]), whole_A)


@pytest.mark.parametrize("kind", ["sequence", "token", "transition"])
def test_weights_of_means_sum_to_one(kind):
    assert float(weights(kind).sum()) == pytest.approx(1.0)


def test_sums_weigh_every_unit_the_same():
    """The sum over actions is their mean times their number, and times the canvas what a constant length gives."""
    assert weights("sequence_sum").tolist() == pytest.approx([1 / 3] * 11)
    torch.testing.assert_close(weights("sequence_sum"), weights("sequence") * torch.bincount(SAMPLE)[SAMPLE])
    torch.testing.assert_close(weights("sequence_sum"), weights("token") * 11 / 3)
    torch.testing.assert_close(weights("constant_length") * CANVAS, weights("sequence_sum"))


def test_completions_that_fill_the_canvas_have_the_same_weights_by_sequence_and_by_constant_length():
    sample_A = torch.arange(3).repeat_interleave(CANVAS)
    kinds = ("sequence", "token", "constant_length")
    of_kind = [action_weights(kind, sample_A, sample_A, 3, 3 * CANVAS, CANVAS) for kind in kinds]
    torch.testing.assert_close(of_kind[0], of_kind[2])
    torch.testing.assert_close(of_kind[1], of_kind[2])


def test_completions_without_transitions_have_the_same_weights_by_transition_and_by_sequence():
    by_transition = action_weights("transition", SAMPLE, None, 3, len(SAMPLE), CANVAS)
    assert torch.equal(by_transition, action_weights("transition", SAMPLE, SAMPLE, 3, len(SAMPLE), CANVAS))
    assert torch.equal(by_transition, weights("sequence"))


def test_weights_are_means_of_means():
    assert weights("token").tolist() == pytest.approx([1 / 11] * 11)
    assert weights("sequence").tolist() == pytest.approx([1 / 21] * 7 + [1 / 9] * 3 + [1 / 3])
    first = [1 / 24] * 2 + [1 / 12] + [1 / 36] * 3 + [1 / 12]
    assert weights("transition").tolist() == pytest.approx(first + [1 / 9] * 3 + [1 / 3])


@pytest.mark.parametrize("kind", ["sequence", "transition"])
def test_completions_without_actions_count(kind):
    one = action_weights(kind, torch.tensor([1, 1]), torch.tensor([3, 5]), 4, 2, CANVAS)
    assert one.tolist() == pytest.approx([1 / 8, 1 / 8])
    assert action_weights(kind, SAMPLE[:0], SAMPLE[:0], 4, 0, CANVAS).tolist() == []


def network(seed: int, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2)).requires_grad_(False)


def synced(every: int = 2, alpha: float = 0.6) -> ReferenceSync:
    sync = ReferenceSync(every, alpha)
    sync.attach(network(0))
    return sync


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.flatten() for parameter in network.parameters()])


def test_the_reference_becomes_a_mixture_every_so_many_steps():
    sync, policy, start = synced(), network(1), flat(network(0))
    for step, expected in ((1, start), (2, 0.4 * start + 0.6 * flat(policy)), (3, None)):
        before = flat(sync.network)
        state = type("State", (), {"global_step": step})
        sync.on_step_end(None, state, None, model=policy)
        torch.testing.assert_close(flat(sync.network), before if expected is None else expected)
    assert torch.equal(flat(policy), flat(network(1))), "the policy stays"


def test_with_alpha_one_it_is_the_policy():
    sync = synced(alpha=1.0)
    sync.mix(network(1))
    assert torch.equal(flat(sync.network), flat(network(1)))


def test_a_checkpoint_restores_its_bits(tmp_path):
    sync, other = synced(alpha=0.3), synced()
    sync.mix(network(1))
    sync.save(tmp_path)
    other.load(tmp_path, 2)
    assert torch.equal(flat(other.network), flat(sync.network))
    assert not torch.equal(flat(other.network), flat(network(0)))


def test_before_the_first_update_nothing_is_read(tmp_path):
    sync = synced()
    sync.load(tmp_path, 1)
    assert torch.equal(flat(sync.network), flat(network(0)))


def test_missing_and_damaged_weights_are_named(tmp_path):
    with pytest.raises(TrainingError, match=r"reference/model\.safetensors is damaged \(.*; remove .* to resume from"):
        synced().load(tmp_path, 2)
    other = ReferenceSync(2, 0.5)
    other.attach(network(0, width=4))
    other.save(tmp_path)
    with pytest.raises(TrainingError, match="it is of another network"):
        synced().load(tmp_path, 2)
    (tmp_path / FILE).write_bytes(b"no tensors")
    with pytest.raises(TrainingError, match="is damaged"):
        synced().load(tmp_path, 2)
