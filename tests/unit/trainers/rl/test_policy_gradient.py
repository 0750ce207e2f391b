"""The loss that all algorithms share, on a policy small enough to differentiate in full."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from completions import rollouts, update, values
from table_policy import EOS, MASK, SPEC, Table, V, check_divisions, divided, gradient_of, loss_of, moved

from dare_bench.errors import TrainingError, UsageError
from dare_bench.seeds import key
from dare_bench.trainers.rl.bgpo import BGPO
from dare_bench.trainers.rl.cj_grpo import CJGRPO
from dare_bench.trainers.rl.coupled_grpo import CoupledGRPO
from dare_bench.trainers.rl.d1 import D1
from dare_bench.trainers.rl.ebpo import EBPO
from dare_bench.trainers.rl.espo import ESPO
from dare_bench.trainers.rl.just_grpo import JustGRPO
from dare_bench.trainers.rl.options import Aggregation
from dare_bench.trainers.rl.policy_gradient import shared_key_of
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.trainers.steps import StepShape
from dare_bench.types import Event, Generation, ModelSpec

ALGORITHMS = (D1, CoupledGRPO, CJGRPO, ESPO, JustGRPO, BGPO, EBPO)
BLOCKS = ModelSpec("toy", MASK, (EOS,), None, None, V, 64, attention="block-causal", block_length=4)
ANSWERS = (
    ((2, 4, 1, 3), 1.0),
    ((0, EOS, EOS, EOS), 0.0),
    ((1, 1, EOS, 2), 0.2),
    ((3, 3, 3, 3), 1.0),
    ((EOS, EOS, EOS, EOS), 0.0),  # empty
    ((4, 0, 2, EOS), 0.7),
)
EQUAL = tuple((answer, 0.3) for answer, _ in ANSWERS)


def method(kind, spec=SPEC, **options):
    few = {"num_mc": 3} if kind in (BGPO, EBPO) else {}
    given = {"num_generations": 3, "num_iterations": 3, "beta": 0.0, "max_completion_length": 4, **few, **options}
    return kind(kind.settle(given, spec), spec, 4)


def reference_of(algorithm, table):
    return lambda step: table.losses(algorithm.inputs(step.copies)).detach()


# The first step on a rollout


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_at_ratio_one_the_gradient_is_reinforce_on_the_estimate(kind):
    """- sum over completions of A times the gradient of the mean of the actions' values, over the completions."""
    table, algorithm = Table(), method(kind)
    source = rollouts(algorithm, table, ANSWERS)
    step = source.step(0)
    loss, result, metrics = divided(algorithm, table, step, 1)
    advantage_S = advantages(torch.tensor([r for _, r in ANSWERS], dtype=torch.float64), 3, algorithm.options.advantage)
    wanted = torch.zeros_like(result)
    for s, record in enumerate(source.rollout.completions):
        actions = algorithm.actions([record], 0, shared_key_of(0, 0))
        wanted -= float(advantage_S[s]) / 6 * gradient_of(table, values(actions, table.losses).mean())
    torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-12)
    assert float(wanted.norm()) > 1e-3
    assert loss == pytest.approx(-float(advantage_S.mean()), abs=1e-12)
    assert metrics["clip_fraction"][0] == 0


@pytest.mark.parametrize("beta", [0.0, 0.04])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_equal_rewards_have_no_gradient_at_all(kind, beta):
    """Exactly zero; with a KL penalty too while the policy is the reference, up to rounding."""
    table, algorithm = Table(), method(kind, beta=beta)
    step = rollouts(algorithm, table, EQUAL).step(0)
    reference = reference_of(algorithm, table) if beta else None
    loss, result, _ = divided(algorithm, table, step, 2, reference)
    if beta:
        assert abs(loss) < 1e-25 and float(result.abs().max()) < 1e-12
    else:
        assert loss == 0.0 and torch.count_nonzero(result) == 0


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_completions_of_groups_with_equal_rewards_cost_no_forward(kind):
    table = Table()
    answers = (*((answer, 0.5) for answer, _ in ANSWERS[:3]), *ANSWERS[3:])
    bare, penalized = (rollouts(method(kind, beta=beta), table, answers).step(0) for beta in (0.0, 0.1))
    assert len(bare.items) == 3 and len(penalized.items) == 6
    assert 2 * len(bare.copies) <= len(penalized.copies) + 4
    algorithm = method(kind)
    wanted = rollouts(algorithm, table, answers).step(0)
    everything = divided(method(kind, beta=1e-300), table, penalized, 1)[1]
    torch.testing.assert_close(divided(algorithm, table, wanted, 1)[1], everything, rtol=1e-9, atol=1e-12)


def test_clip_shares_are_of_the_same_actions_with_and_without_a_penalty():
    """A penalty adds completions without an advantage, which no clip acts on."""
    table, answers = Table(), (*((answer, 0.5) for answer, _ in ANSWERS[:3]), *ANSWERS[3:])
    shares = []
    for beta in (0.0, 0.1):
        algorithm = method(D1, beta=beta, epsilon=0.01)
        source = rollouts(algorithm, table, answers)
        source.step(0)
        step = source.step(1)
        reference = reference_of(algorithm, table) if beta else None
        metrics = loss_of(algorithm, step, moved(table, 0.3).losses, reference)[1]
        shares.append([metrics[name] for name in ("clip_fraction", "clip_low", "clip_high")])
        assert len(step.items) == (6 if beta else 3)
    assert shares[0] == shares[1] and 0 < shares[0][0][0] < shares[0][0][1]


# Later steps on a rollout


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_old_values_are_those_of_the_sampling_policy_on_the_same_draws(kind):
    table, algorithm = Table(), method(kind)
    source = rollouts(algorithm, table, ANSWERS)
    source.step(0)
    policy = moved(table)
    for iteration in (1, 2):
        step = source.step(iteration)
        before, now = (values(step.surrogate.actions, model.losses).detach() for model in (table, policy))
        torch.testing.assert_close(step.surrogate.old_A, before, rtol=1e-5, atol=1e-5)
        loss, _ = loss_of(algorithm, step, table.losses)
        wanted = -float((step.surrogate.advantage_A * step.surrogate.weight_A).sum())
        assert float(loss.detach()) == pytest.approx(wanted, abs=1e-4), "ratio 1 before the policy moves"
        ratio_A, a_A = (now - before).exp(), step.surrogate.advantage_A
        if kind is BGPO:
            ratio_A = torch.where(a_A >= 0, 1 + now - before, ratio_A)
        o = algorithm.options
        bound_A = ratio_A.clamp(1 - o.epsilon, 1 + o.epsilon)
        by_hand = -torch.minimum(a_A * ratio_A, a_A * bound_A) @ step.surrogate.weight_A
        loss, _ = loss_of(algorithm, step, policy.losses)
        assert float(loss.detach()) == pytest.approx(float(by_hand), rel=1e-4, abs=1e-5)
        assert float((ratio_A - 1).abs().max()) > 1e-3


@pytest.mark.parametrize("kind", [D1, CoupledGRPO, ESPO, BGPO, EBPO])
def test_every_iteration_has_draws_of_its_own(kind):
    source = rollouts(method(kind, **({"p_mask_prompt": 0.5} if kind is D1 else {})), Table(), ANSWERS)
    copies = [source.step(i).copies.seen_T.tolist() for i in range(3)]
    assert copies[0] != copies[1] != copies[2]
    again = rollouts(source.method, Table(), ANSWERS)
    assert [again.step(i).copies.seen_T.tolist() for i in range(3)] == copies


def test_the_next_rollout_is_another():
    source = rollouts(method(CoupledGRPO), Table(), ANSWERS)
    keys = [[record.key for record in (source.step(i), source.rollout)[1].completions] for i in (0, 1, 2, 3)]
    assert keys[0] == keys[1] == keys[2] and not set(keys[0]) & set(keys[3])
    assert len(set(keys[0])) == 6


# Division


@pytest.mark.parametrize("kind", ALGORITHMS)
@pytest.mark.parametrize("iteration", [0, 1])
def test_the_division_into_forwards_does_not_change_the_gradient(kind, iteration):
    table, start = Table(), Table(2)
    algorithm = method(kind, beta=0.1)
    source = rollouts(algorithm, table, ANSWERS)
    source.step(0)
    step, policy = source.step(iteration), moved(table) if iteration else table
    reference = reference_of(algorithm, start)
    check_divisions(algorithm, policy, step, reference)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_no_aggregation_depends_on_the_division_into_forwards(aggregation):
    """A mean over the tokens of a micro-batch would."""
    table, algorithm = Table(), method(CoupledGRPO, aggregation=aggregation)
    check_divisions(algorithm, table, rollouts(algorithm, table, ANSWERS).step(0), None)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_division_among_processes_does_not_change_the_gradient(kind, aggregation):
    table, algorithm = Table(), method(kind, aggregation=aggregation)
    source = rollouts(algorithm, table, ANSWERS)
    step = source.step(0)
    whole = divided(algorithm, table, step, 1)[1]
    rollout, total = source.rollout, torch.zeros_like(whole)
    for part in (slice(0, 2), slice(2, 6)):
        mine = deepcopy(rollout)
        mine.completions, mine.advantage = rollout.completions[part], rollout.advantage[part]
        total += divided(algorithm, table, algorithm.step(mine, update(0, 0, 6)), 1)[1]
    torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("aggregation", ["sequence", "token", "transition"])
@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_weights_of_a_step_sum_to_one(kind, aggregation):
    step = rollouts(method(kind, beta=0.1, aggregation=aggregation), Table(), ANSWERS).step(0)
    assert float(step.surrogate.weight_A.sum()) == pytest.approx(1.0)


# KL


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_the_penalty_is_beta_times_the_mean_of_the_actions_kl(kind):
    table, start, algorithm = Table(), moved(Table()), method(kind, beta=0.5)
    step = rollouts(algorithm, table, EQUAL).step(0)
    reference = reference_of(algorithm, start)
    loss, _, metrics = divided(algorithm, table, step, 1, reference)
    actions = step.surrogate.actions
    lr_A = (values(actions, table.losses) - values(actions, start.losses)).detach()
    kl_A = {ESPO: 4 * lr_A**2 / 2, EBPO: lr_A**2 / 2}.get(kind, torch.expm1(-lr_A) + lr_A)
    wanted = float(kl_A @ step.surrogate.weight_A)
    assert loss == pytest.approx(0.5 * wanted, rel=1e-6)
    assert metrics["kl"][0] / metrics["kl"][1] == pytest.approx(wanted, rel=1e-6)
    assert wanted > 1e-6


def test_the_kl_of_espo_is_of_the_elbos_before_they_are_normalized():
    """k2 of the raw difference, divided by the length; k2 of the normalized difference is L times smaller."""
    algorithm = method(ESPO, beta=0.5)
    step = rollouts(algorithm, Table(), ANSWERS).step(0)
    lr_A = torch.linspace(-1, 1, 6).double()
    raw_A = lr_A * 4
    assert algorithm.kl_of(lr_A, step.surrogate).tolist() == pytest.approx((raw_A**2 / 2 / 4).tolist())
    assert algorithm.kl_of(lr_A, step.surrogate).tolist() == pytest.approx((4 * lr_A**2 / 2).tolist())


# Answers


def test_what_counts_of_an_answer_ends_with_its_first_eos():
    source = rollouts(method(D1), Table(), ANSWERS)
    source.step(0)
    assert [record.scored for record in source.rollout.completions] == [4, 2, 3, 4, 1, 4]
    assert source.rollout.scored_total == 18
    everything = rollouts(method(D1, score_after_eos=True), Table(), ANSWERS)
    everything.step(0)
    assert [record.scored for record in everything.rollout.completions] == [4] * 6


@pytest.mark.parametrize("kind", ALGORITHMS)
def test_empty_answers_and_answers_without_eos_are_learned_from(kind):
    table, algorithm = Table(), method(kind)
    answers = (((EOS,) * 4, 1.0), ((1, 2, 3, 4), 0.0), ((EOS,) * 4, 1.0))
    step = rollouts(algorithm, table, answers).step(0)
    _, result, _ = divided(algorithm, table, step, 1)
    assert torch.isfinite(result).all() and float(result.norm()) > 1e-3

    def objective():
        return float(
            (
                values(step.surrogate.actions, table.losses).detach()
                * step.surrogate.weight_A
                * step.surrogate.advantage_A
            ).sum()
        )

    before = objective()
    with torch.no_grad():
        for parameter, slope in zip(table.parameters(), torch.split(result, [49, 256]), strict=True):
            parameter -= 0.01 * slope.view_as(parameter)
    assert objective() > before, "the right, empty answer gains on the wrong one"


def test_tokens_behind_the_stop_belong_to_the_record():
    """A block-wise sampler stops at EOS inside a block; the block's other tokens were written all the same."""
    algorithm = method(CJGRPO, BLOCKS)
    events = [
        Event(step, "set", at, token, 0.5, -0.7) for step, at, token in ((0, 3, 2), (1, 0, 4), (2, 1, EOS), (3, 2, 1))
    ]
    answer = Generation([4, EOS], "", 4, "eos", tokens_to_eos=2, trajectory=events)
    record = algorithm.completion((0, 0, 0, 0), answer, 5, "row 0")
    assert record.tokens == (4, EOS, 1, 2)
    assert record.set_at == (1, 2, 3, 0)
    assert record.scored == 2


def test_a_prompt_event_is_not_part_of_the_completion():
    algorithm = method(CJGRPO)
    events = [Event(0, "set", -1, 2, 0.5, -0.7), *(Event(1, "set", at, 3, 0.5, -0.7) for at in range(4))]
    record = algorithm.completion((0, MASK), Generation([3] * 4, "", 2, "length", trajectory=events), 5, "row 0")
    assert record.tokens == (3, 3, 3, 3) and record.set_at == (1, 1, 1, 1)


# Refusals


@pytest.mark.parametrize("kind", [D1, CoupledGRPO, ESPO])
def test_estimators_that_mask_whole_completions_refuse_block_causal_families(kind):
    with pytest.raises(UsageError, match="decodes block by block\\); use cj_grpo"):
        method(kind, BLOCKS)


def test_a_family_that_predicts_a_block_s_first_token_before_the_block_is_refused():
    with pytest.raises(UsageError, match=r"finished block before it.*use sft, dpo or vrpo"):
        method(EBPO, replace(BLOCKS, predicts="next"))


def test_a_step_that_is_no_multiple_of_the_group_is_refused():
    with pytest.raises(
        UsageError,
        match=r"8 completions of an optimizer step .* not a multiple of --num-generations 3; give .* for 6",
    ):
        Rollouts(method(D1), None, StepShape(4, 2), 0, 0)


def test_keys_of_completions_are_counter_based():
    source = rollouts(method(D1), Table(), ANSWERS, seed=5)
    source.step(0)
    requests = [request for _, request in source.requests(0)]
    assert [record.key for record in source.rollout.completions] == [key("noise", request.seed) for request in requests]
    assert len({request.seed for request in requests}) == 6


@pytest.mark.parametrize("level", ["0,0.5", "0.5,1", "0.8,0.2", (2.0, 3.0), "0.5"])
def test_mask_levels_are_inside_0_and_1(level):
    with pytest.raises(UsageError, match="level"):
        CoupledGRPO.settle({"level": level}, SPEC)
    assert CoupledGRPO.settle({"level": "0.3,0.7"}, SPEC).level == (0.3, 0.7)


def test_an_error_of_a_reward_in_another_process_is_raised_here_too():
    source = Rollouts.__new__(Rollouts)
    source.policy = SimpleNamespace(rewards=lambda prompts, texts: [], gather=lambda own: [own, "f:3: no sandbox"])
    with pytest.raises(TrainingError, match="could not be scored: f:3: no sandbox"):
        source.scores([], [])
