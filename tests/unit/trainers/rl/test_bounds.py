"""SPG, BGPO and JustGRPO: the identities of their bounds, on a policy that can be enumerated."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from completions import completion, rollouts, scored_positions, seen, values
from table_policy import EOS, MASK, SPEC, Table, V, accumulated, elbo, gradient_of, masks
from torch.nn.functional import cross_entropy

from dare_bench.diffusion.forward import inputs
from dare_bench.diffusion.schedules import NoiseSchedule
from dare_bench.errors import DecodingError, UsageError
from dare_bench.loading import load
from dare_bench.trainers.rl import estimators
from dare_bench.trainers.rl.bgpo import BGPO
from dare_bench.trainers.rl.estimators import block_masked
from dare_bench.trainers.rl.just_grpo import JustGRPO
from dare_bench.trainers.rl.requirements import check_rollout
from dare_bench.trainers.rl.spg import SPG
from dare_bench.trainers.rl.surrogate import linearized
from dare_bench.types import Capabilities

PROMPT, ANSWER = (0, 3), (2, 4, 1, 3)
ANSWERS = (
    ((2, 4, 1, 3), 1.0), ((0, EOS, EOS, EOS), 0.0), ((1, 1, EOS, 2), 0.2),
    ((3, 3, 3, 3), 1.0), ((EOS, EOS, EOS, EOS), 0.0), ((4, 0, 2, EOS), 0.7),
)  # fmt: skip


def method(kind, spec=SPEC, **options):
    given = {"num_generations": 3, "num_iterations": 2, "max_completion_length": 4, **options}
    return kind(kind.settle(given, spec), spec, 4)


def many(count, **fields):
    return [completion(ANSWER, key=i, **fields) for i in range(count)]


def gradient(algorithm, table, step, count):
    table.zero_grad()
    accumulated(algorithm, step, table.losses, count)
    return torch.cat([parameter.grad.flatten() for parameter in table.parameters()])


def context_free(table):
    """The same policy without a context: the prediction of a position does not depend on the other tokens."""
    with torch.no_grad():
        table.emb[:] = table.emb[:1]
    return table


# SPG: masks


def test_masks_lie_in_one_block_and_behind_it_and_only_the_completion_is_scored():
    rows = many(60, scored=3)
    actions = block_masked(rows, MASK, 0, 2, 2, 0.5)
    offset, blocks, inside = len(PROMPT), set(), set()
    for copy, places in zip(seen(actions), scored_positions(actions), strict=True):
        hidden = [at for at, token in enumerate(copy) if token == MASK]
        assert offset + 3 in hidden and offset + 3 not in places, "tokens behind the end are hidden, and not scored"
        assert places == [at for at in hidden if offset <= at < offset + 3]
        assert places, "each copy scores a token"
        blocks.add(offset + 2 in places and not set(places) & {offset, offset + 1})
        inside.add(len(set(places) & {offset, offset + 1}))
    assert blocks == {True, False} and inside == {0, 1, 2}
    pairs = [set(map(tuple, places)) for places in zip(*[iter(scored_positions(actions))] * 2, strict=True)]
    assert sum(len(pair) == 2 for pair in pairs) > 30, "the two draws of a completion take different blocks"


def test_without_prompt_masks_tokens_before_the_block_are_seen():
    for copy in seen(block_masked(many(40), MASK, 0, 2, 2, 0.0)):
        hidden = [at for at, token in enumerate(copy) if token == MASK]
        assert min(hidden) >= len(PROMPT), "the prompt is seen"
        assert {4, 5} <= set(hidden) or min(hidden) >= 4, "all of it behind the block, and nothing before it"


def test_draws_are_counter_based_and_differ_between_iterations():
    rows = many(12)
    assert seen(block_masked(rows, MASK, 0, 2, 2, 0.3))[8:12] == seen(block_masked(rows[4:6], MASK, 0, 2, 2, 0.3))
    assert seen(block_masked(rows, MASK, 0, 2, 2, 0.3)) != seen(block_masked(rows, MASK, 1, 2, 2, 0.3))


# SPG: bounds


def by_hand(actions, table, completion_index, power):
    """Both bounds of a completion from the copies of it, token by token."""
    nll_N = table.losses(inputs(actions.copies, SPEC)).detach()
    terms: dict[int, float] = {}
    lower, draws = 0.0, 0
    for copy in range(len(actions.copies)):
        if int(actions.sample_R[copy]) != completion_index:
            continue
        draws += 1
        mine = actions.copies.copy_N == copy
        columns = actions.copies.batch.column_T[actions.copies.at_N[mine]].tolist()
        share = len(columns) / 4
        lower += float(-nll_N[mine].mean())
        for column, nll in zip(columns, nll_N[mine].tolist(), strict=True):
            terms[column] = terms.get(column, 0.0) + math.exp(-power * nll) / share
    upper = [math.log(term / draws) / power for term in terms.values()]
    return lower / draws, sum(upper) / len(upper)


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
def test_both_bounds_are_those_of_the_paper(power):
    table = Table()
    actions = block_masked(many(5), MASK, 0, 3, 2, 0.2)
    nll_N = table.losses(inputs(actions.copies, SPEC)).detach()
    for i in range(5):
        lower, upper = by_hand(actions, table, i, power)
        assert float(actions.logprobs(nll_N)[i]) == pytest.approx(lower)
        assert float(actions.upper(nll_N, power)[i]) == pytest.approx(upper)


def logps_by_mask(table):
    """log p of each token under every mask, and the log of the mask's weight for it: two float64 [masks, 4], -inf where
    a token is not masked."""
    whole, logps, shares = torch.tensor([*PROMPT, *ANSWER]), [], []
    for mask, chance in masks(4):
        hidden = torch.cat([torch.zeros(2, dtype=torch.bool), mask])
        logp = table(torch.where(hidden, MASK, whole)).log_softmax(-1)[torch.arange(6), whole][2:].detach()
        logps.append(torch.where(mask, logp, -torch.inf))
        shares.append((mask.double() * chance * 4 / int(mask.sum())).log())
    return torch.stack(logps), torch.stack(shares)


def test_the_lower_bound_is_the_elbo_with_one_mask_block_alone():
    """And with two draws, the upper one is often below it."""
    shares = []
    for seed in range(4):
        table, rows = Table(seed), many(1000)
        exact = float(elbo(table, PROMPT, ANSWER).detach()) / len(ANSWER)
        one, two = (block_masked(rows, MASK, 0, 2, block_length) for block_length in (4, 2))
        nll_N = table.losses(inputs(one.copies, SPEC)).detach()
        assert float(one.logprobs(nll_N).mean()) == pytest.approx(exact, abs=0.03)
        assert abs(float(values(two, table.losses).mean().detach()) - exact) > 0.08
        shares.append(float((one.upper(nll_N, 1.5) < one.logprobs(nll_N)).double().mean()))
    assert sum(shares) / len(shares) == pytest.approx(0.35, abs=0.02), "docs/algorithms.md states it"


def exact_upper(table, power):
    """The upper bound with all masks instead of draws: 1 / power log of the expectation of p^power / share."""
    logp_ML, share_ML = logps_by_mask(table)
    return float((logp_ML * power + share_ML).logsumexp(0).sum() / power)


def test_the_upper_bound_is_a_power_mean_from_the_elbo_to_the_best_context_of_each_token():
    """Its weights sum to 1 for each token, so that it grows with the power, from the ELBO on; in the limit each token
    has the probability that it has in the context that favors it most."""
    table = Table()
    logp_ML, share_ML = logps_by_mask(table)
    assert share_ML.exp().sum(0).tolist() == pytest.approx([1.0] * 4)
    powers = (1e-6, 0.3, 1.0, 1.5, 4.0, 1e5)
    bounds = [exact_upper(table, power) for power in powers]
    assert bounds[0] == pytest.approx(float(elbo(table, PROMPT, ANSWER).detach()), abs=1e-4)
    assert bounds == sorted(bounds) and bounds[-1] - bounds[-2] > 0.05
    assert bounds[-1] == pytest.approx(float(logp_ML.max(0).values.sum()), abs=1e-3)


def test_the_estimated_upper_bound_has_the_same_limit():
    """Of each token that some draw masks, the largest log p among those draws; p^power itself would be zero."""
    table = Table()
    actions = block_masked(many(5), MASK, 0, 3, 2, 0.2)
    nll_N = table.losses(inputs(actions.copies, SPEC)).detach()
    best_P = torch.full((len(actions.sample_P),), -torch.inf, dtype=torch.float64)
    best_P = best_P.scatter_reduce(0, actions.place_N, -nll_N, "amax")
    wanted = [float(best_P[actions.sample_P == i].mean()) for i in range(5)]
    assert actions.upper(nll_N, 1e6).tolist() == pytest.approx(wanted, abs=1e-4)
    assert (actions.upper(nll_N, 1e6) - actions.upper(nll_N, 1.5)).abs().max() > 0.05


def test_without_context_both_bounds_are_equal():
    table = context_free(Table())
    assert exact_upper(table, 1.5) == pytest.approx(float(elbo(table, PROMPT, ANSWER).detach()))


@pytest.mark.parametrize(("negative", "share"), [("mix", 0.5), ("eubo", 1.0), ("elbo", 0.0), ("zero", None)])
def test_the_sign_of_the_advantage_chooses_the_bound(negative, share):
    table, algorithm = Table(), method(SPG, negative=negative)
    step = rollouts(algorithm, table, ANSWERS).step(0)
    nll_N, surrogate = table.losses(algorithm.inputs(step.copies)).detach(), step.surrogate
    lower_A, upper_A = surrogate.actions.logprobs(nll_N), surrogate.actions.upper(nll_N, 1.5)
    other_A = 0 * lower_A if share is None else share * upper_A + (1 - share) * lower_A
    bound_A = torch.where(surrogate.advantage_A > 0, lower_A, other_A)
    scored = torch.tensor([4, 2, 3, 4, 1, 4]).double()
    wanted = -float((surrogate.advantage_A * bound_A * scored[surrogate.completion_A]).sum() / scored.sum())
    assert float(algorithm.loss(step, nll_N, None)[0]) == pytest.approx(wanted)


@pytest.mark.parametrize("negative", ["elbo", "mix"])
def test_lower_bounds_alone_give_the_policy_gradient_on_the_elbo(negative):
    """With ``negative=elbo``, and with any bound where all advantages are positive."""
    table, algorithm = Table(), method(SPG, negative=negative)
    step = rollouts(algorithm, table, ANSWERS).step(0)
    surrogate = step.surrogate
    if negative == "mix":
        surrogate = replace(surrogate, advantage_A=surrogate.advantage_A.abs() + 0.1)
    weight_A = surrogate.advantage_A * torch.tensor([4, 2, 3, 4, 1, 4]).double() / 18
    wanted = -gradient_of(table, torch.dot(weight_A, values(surrogate.actions, table.losses)))
    result = gradient(algorithm, table, replace(step, surrogate=surrogate), 1)
    torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-12)
    assert float(wanted.norm()) > 1e-3


def test_completions_whose_bound_is_zero_are_not_looked_at(monkeypatch):
    """With ``negative=zero``; the gradient is that of a step with copies of all of them."""
    table, algorithm = Table(), method(SPG, negative="zero")
    step = rollouts(algorithm, table, ANSWERS).step(0)
    few = gradient(algorithm, table, step, 1)
    monkeypatch.setattr(SPG, "learns_from", lambda self, completion, advantage: advantage != 0)
    every = rollouts(algorithm, table, ANSWERS).step(0)
    assert (len(step.copies), len(every.copies)) == (2 * 3, 2 * 6)
    torch.testing.assert_close(few, gradient(algorithm, table, every, 1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("negative", ["mix", "elbo"])
def test_the_gradient_of_spg_does_not_depend_on_the_division(negative):
    table, algorithm = Table(), method(SPG, negative=negative)
    step = rollouts(algorithm, table, ANSWERS).step(0)
    whole = gradient(algorithm, table, step, 1)
    assert float(whole.norm()) > 1e-3
    for count in (2, 5, len(step.copies) + 1):
        torch.testing.assert_close(gradient(algorithm, table, step, count), whole, rtol=1e-9, atol=1e-12)
    if negative == "elbo":
        assert not algorithm.needs_values(step), "the policy gradient of an ELBO needs no pass for values"


def test_equal_rewards_teach_nothing_and_a_rollout_needs_no_old_values():
    table, algorithm = Table(), method(SPG)
    source = rollouts(algorithm, table, tuple((answer, 0.3) for answer, _ in ANSWERS))
    assert torch.count_nonzero(gradient(algorithm, table, source.step(0), 1)) == 0
    assert source.rollout.old == [] and table.forwards == 2, "values and gradient of the first step, nothing before it"
    source.step(1)


def test_ratios_and_penalties_are_no_settings_of_spg():
    for name in ("epsilon", "beta", "dual_clip", "importance_cap"):
        with pytest.raises(UsageError, match=f"spg has no setting '{name}'"):
            SPG.settle({name: 0.1}, SPEC)


# BGPO


@pytest.mark.parametrize("advantage", [1.3, -0.7])
def test_the_linear_bound_is_below_the_objective_and_equal_to_it_at_ratio_one(advantage):
    torch.manual_seed(0)
    for spread in (0.01, 0.3, 2.0):
        d_A = (torch.randn(16, dtype=torch.float64) * spread).requires_grad_()
        a_A = torch.full((16,), advantage, dtype=torch.float64)
        loss_A, _ = linearized(d_A, a_A, 1e9, 1e9)
        assert float(-loss_A.detach().mean()) <= advantage * math.exp(float(d_A.detach().mean())) + 1e-12
    d_A = torch.zeros(16, dtype=torch.float64, requires_grad=True)
    loss = linearized(d_A, a_A, 0.2, 0.2)[0].mean()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-advantage)
    assert d_A.grad.tolist() == pytest.approx([-advantage / 16] * 16), "the gradient of the mean ELBO times A"


def test_a_large_fall_of_a_good_draw_is_finite():
    """DARE computes exp(log(1 + d)), which is not a number for d <= -1."""
    d_A = torch.tensor([-1.5, -1.0, 0.1], dtype=torch.float64, requires_grad=True)
    loss_A, active_A = linearized(d_A, torch.ones(3, dtype=torch.float64), 0.2, 0.2)
    loss_A.sum().backward()
    assert loss_A.tolist() == pytest.approx([0.5, 0.0, -1.1]) and d_A.grad.tolist() == [-1.0, -1.0, -1.0]
    assert not active_A.any(), "a clip would take the gradient that brings the ratio back"


def test_the_clip_is_active_only_where_the_ratio_left_its_range():
    d_A = torch.tensor([0.5, 0.1, -0.5, 0.5, -0.1, -0.5], dtype=torch.float64)
    a_A = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    assert linearized(d_A, a_A, 0.2, 0.2)[1].tolist() == [True, False, False, False, False, True]


def test_draws_of_bgpo_are_actions_and_their_mean_is_the_elbo():
    table, algorithm = Table(), method(BGPO, num_mc=4)
    rows = many(3)
    actions = algorithm.actions(rows, 0, 0)
    assert actions.sample_A.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    v_A = values(actions, table.losses).detach()
    wanted = float(elbo(table, PROMPT, ANSWER).detach()) / 4
    every = torch.cat([values(algorithm.actions(many(400), i, 0), table.losses).detach() for i in range(10)])
    assert float(every.mean()) == pytest.approx(wanted, abs=3 * float(every.std()) / len(every) ** 0.5 * 2)
    together = estimators.elbo(rows, MASK, 0, NoiseSchedule("counts", 4))
    torch.testing.assert_close(values(together, table.losses).detach(), v_A.view(3, 4).mean(1))


def test_counts_cover_every_number_of_masks_once_over_as_many_draws_as_tokens():
    actions = method(BGPO, num_mc=4).actions(many(5), 0, 0)
    counts = torch.bincount(actions.copies.copy_N).view(5, 4)
    assert [sorted(row) for row in counts.tolist()] == [[1, 2, 3, 4]] * 5
    fresh = [method(BGPO, num_mc=1).actions(many(200), i, 0).copies.copy_N.bincount().tolist() for i in (0, 1)]
    assert fresh[0] != fresh[1] and set(fresh[0]) == set(fresh[1]) == {1, 2, 3, 4}, "an iteration has levels of its own"


# JustGRPO


def chain(table, answer):
    """Log-probability of an answer written left to right, by hand."""
    total = 0.0
    for at, token in enumerate(answer):
        row = torch.tensor([*PROMPT, *answer[:at], *[MASK] * (len(answer) - at)])
        total += float(table(row)[len(PROMPT) + at].log_softmax(-1)[token].detach())
    return total


def test_the_chain_sums_to_one_over_all_answers():
    table, algorithm, total = Table(), method(JustGRPO), 0.0
    rows = [completion(answer, key=i) for i, answer in enumerate(product(range(V), repeat=3))]
    actions = algorithm.actions(rows, 0, 0)
    logp_S = torch.zeros(len(rows), dtype=torch.float64)
    logp_S.index_add_(0, actions.sample_A, values(actions, table.losses).detach())
    total = float(logp_S.exp().sum())
    assert total == pytest.approx(1.0)
    assert float(logp_S[5]) == pytest.approx(chain(table, rows[5].tokens))


def test_ragged_answers_do_not_change_each_other():
    table, algorithm = Table(), method(JustGRPO)
    rows = [completion(ANSWER[:n], key=n) for n in (1, 2, 4)]
    together = values(algorithm.actions(rows, 0, 0), table.losses).detach()
    alone = torch.cat([values(algorithm.actions([row], 0, 0), table.losses).detach() for row in rows])
    torch.testing.assert_close(together, alone)


def test_the_temperature_of_the_rollout_divides_the_logits_of_the_learner():
    model = load("tiny-llada-base", device="cpu").loaded
    actions = method(JustGRPO).actions(many(1), 0, 0)
    losses = []
    for temperature in (1.0, 0.5):
        given = method(JustGRPO, model.spec, temperature=temperature).inputs(actions.copies)
        with torch.no_grad():
            nll_N = model.network(**given.arguments()).nll
            logits_NV = model.network(**{**given.arguments(), "targets": None}).logits
        torch.testing.assert_close(
            nll_N, cross_entropy(logits_NV / temperature, actions.copies.target_N, reduction="none")
        )
        losses.append(nll_N)
    assert not torch.allclose(*losses, rtol=0.05)


def test_the_order_of_the_rollout_is_no_setting():
    model = SimpleNamespace(
        capabilities=Capabilities(trajectory=True, logprobs=True, row_keyed_randomness=True), spec=SPEC
    )
    algorithm = method(JustGRPO, rollout={"strategy": "quota"})
    with pytest.raises(DecodingError, match="rollout strategy='quota': just_grpo samples with strategy=sequential"):
        check_rollout(algorithm, model, None)
