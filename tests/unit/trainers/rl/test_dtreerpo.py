"""d-TreeRPO's loss on a policy small enough to differentiate in full: transitions, self-distillation, division."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise, product
from typing import get_args

import pytest
import torch
from completions import (
    ScriptedPolicy,
    completion,
    first_rollout,
    prompts,
    rollouts,
    scored_positions,
    seen,
    update,
    values,
)
from table_policy import EOS, MASK, SPEC, Table, V, check_divisions, divided, gradient_of, moved

from dare_bench.trainers.rl.d1 import D1
from dare_bench.trainers.rl.dtreerpo import DTreeRPO
from dare_bench.trainers.rl.estimators import from_parents, trajectory
from dare_bench.trainers.rl.options import Aggregation
from dare_bench.trainers.rl.surrogate import MIN_TEMPERATURE, targets
from dare_bench.trainers.rl.tree import local_advantages, node_values
from dare_bench.trainers.steps import StepShape
from dare_bench.types import Event, Generation, Sample

LEAVES = (
    ((2, 4, 1, 3), 1.0),
    ((2, 4, 0, 3), 0.0),
    ((2, 1, 1, EOS), 0.2),
    ((2, 1, EOS, 2), 1.0),
    ((0, EOS, 1, 1), 0.0),  # ended in the segment above: nothing of its own counts
    ((0, EOS, 2, 2), 0.4),
    ((4, 0, 2, EOS), 0.7),
    ((4, 0, 2, 3), 0.6),
)
"""Two trees: the root with two children, which write two tokens, each with two leaves, which write the others."""
EQUAL = tuple((answer, 0.3) for answer, _ in LEAVES)


class ScriptedTrees(ScriptedPolicy):
    """Leaves from a list; one token a forward, left to right."""

    steps = 4

    def forwards(self, request):
        return 4

    def generate(self, requests):
        return [Sample(request, self.segment(request)) for request in requests]

    def segment(self, request):
        place, *path = map(int, request.key.split(".")[1:])
        group = self.method.options.num_generations
        branches = self.method.tree.branches
        leaf = place * group + sum(
            branch * math.prod(branches[level + 1 :]) for level, branch in enumerate(path)
        )  # of an inner node: its first leaf
        answer, start, end = self.answers[leaf][0], request.start_forward or 0, request.end_forward or 4
        assert request.canvas is None or list(request.canvas) == [*answer[:start], *[MASK] * (4 - start)]
        tokens = [*answer[:end], *[MASK] * (4 - end)]
        events = [Event(n, "set", n, answer[n], 0.5, -0.7) for n in range(start, end)]
        return Generation(
            tokens, "", end - start, "length", tokens_to_eos=4, trajectory=events, end_step=end % 4 or None
        )


def method(**options):
    given = {"num_generations": 4, "tree_branch_factor": 2, "num_iterations": 3, "beta": 0.0, "distillation": 0.0}
    return DTreeRPO(DTreeRPO.settle({**given, "max_completion_length": 4, **options}, SPEC), SPEC, 4)


def trees(algorithm, table, leaves=LEAVES):
    source = algorithm.source(prompts(len(leaves) // algorithm.options.num_generations), StepShape(len(leaves)), 0)
    source.attach(ScriptedTrees(table, algorithm, leaves))
    return source


def by_parent(table, node):
    """log p of the tokens that a node's segment wrote and that count, by the table itself on the parent's canvas."""
    canvas = [MASK if at >= 0 else token for token, at in zip(node.tokens, node.set_at, strict=True)]
    log_LV = table(torch.tensor([*node.prompt, *canvas])).log_softmax(-1)
    return {i: log_LV[len(node.prompt) + i, node.tokens[i]] for i in node.written}


# Transitions


def test_one_copy_at_a_parent_scores_all_its_children():
    source = trees(method(), Table())
    source.step(0)
    nodes = source.rollout.completions
    actions = from_parents(nodes[:6], MASK)
    assert len(actions.copies) == 3
    assert seen(actions) == [[0, *[MASK] * 4], [0, 2, 4, MASK, MASK], [0, 2, 1, MASK, MASK]]
    assert scored_positions(actions) == [[1, 1, 2, 2], [3, 3, 4, 4], [3, 3, 4]], "through the first EOS of each"
    assert actions.copies.target_N.tolist() == [2, 2, 4, 1, 1, 0, 3, 3, 1, EOS, EOS]
    assert actions.sample_A.tolist() == [0, 1, 0, 1, 2, 3, 2, 3, 4, 5, 4]
    assert len(from_parents(nodes, MASK).copies) == 5, "two of the second tree's leaves have no token of their own"


def test_values_are_transition_log_probabilities_on_the_parents_canvas():
    table, source = Table(), trees(method(), Table())
    source.step(0)
    nodes = source.rollout.completions
    actions = from_parents(nodes, MASK)
    v_A, column_N = values(actions, table.losses), actions.copies.batch.column_T[actions.copies.at_N]
    got = {
        (s, int(c) - len(nodes[s].prompt)): float(v)
        for s, c, v in zip(actions.sample_A.tolist(), column_N, v_A.detach(), strict=True)
    }
    wanted = {(s, i): float(v.detach()) for s, node in enumerate(nodes) for i, v in by_parent(table, node).items()}
    assert got == pytest.approx(wanted) and len(got) == 22 - 3


def test_with_a_forward_a_level_a_path_has_the_exact_log_probability_of_its_order():
    """Four levels of four forwards, one token each: the sum is the chain rule, as in the replay of the trajectory."""
    table = Table()
    algorithm = method(num_generations=2, tree_branch_factor=1, tree_contraction_factor=4, num_iterations=1)
    source = trees(algorithm, table, LEAVES[:2])
    source.step(0)
    total_S = torch.zeros(8, dtype=torch.float64)
    actions = from_parents(source.rollout.completions, MASK)
    total_S.index_add_(0, actions.sample_A, values(actions, table.losses).detach())
    for first, (answer, _) in enumerate(LEAVES[:2]):
        whole = values(trajectory([completion(answer, prompt=(0,))], MASK), table.losses).detach()
        assert float(total_S[first::2].sum()) == pytest.approx(float(whole.sum()))


@pytest.mark.parametrize("advantage", ["leave_one_out", "mean", "standardized"])
def test_one_level_is_grpo_with_one_step_likelihoods(advantage):
    """Loss and gradient are those of d1 without prompt masks on the same answers; leave one out is the default."""
    table, loss, gradient = Table(), [], []
    options = {"num_generations": 4, "num_iterations": 1, "beta": 0.0, "max_completion_length": 4}
    flat = D1(D1.settle({**options, "p_mask_prompt": 0.0, "advantage": advantage}, SPEC), SPEC, 4)
    for algorithm, source in (
        (flat, rollouts(flat, table, LEAVES)),
        (one := method(tree_contraction_factor=1, num_iterations=1, advantage=advantage), trees(one, table)),
    ):
        value, result, _ = divided(algorithm, table, source.step(0), 1)
        loss.append(value)
        gradient.append(result)
    assert loss[1] == pytest.approx(loss[0], abs=1e-12) and float(gradient[0].norm()) > 1e-3
    torch.testing.assert_close(gradient[1], gradient[0], rtol=1e-9, atol=1e-12)
    assert method().options.advantage == "leave_one_out"


# The first step on a rollout


def test_at_ratio_one_the_gradient_is_reinforce_on_the_transitions():
    """- the mean over nodes of A times the gradient of the mean log p of a node's own tokens. A node without such a
    token counts."""
    table, algorithm = Table(), method()
    source = trees(algorithm, table)
    loss, result, metrics = divided(algorithm, table, source.step(0), 1)
    rollout, wanted, objective = source.rollout, torch.zeros_like(result), 0.0
    advantage = [-0.1, 0.1, 1.0, -1.0, -0.8, 0.8, -0.45, 0.45, -0.4, 0.4, 0.1, -0.1]
    assert rollout.advantage == pytest.approx(advantage)
    for node, a in zip(rollout.completions, advantage, strict=True):
        if own := by_parent(table, node):
            wanted -= a / 12 * gradient_of(table, torch.stack(list(own.values())).mean())
            objective -= a / 12
    torch.testing.assert_close(result, wanted, rtol=1e-9, atol=1e-12)
    assert float(wanted.norm()) > 1e-3
    assert loss == pytest.approx(objective, abs=1e-12) and metrics["clip_fraction"][0] == 0


class Letters(Table):
    """Only three letters, so that all trees can be enumerated."""

    def forward(self, rows):
        return super().forward(rows).index_fill(-1, torch.arange(3, V), -1e9)


REWARD = torch.tensor([[0.1, 1.0, 0.0], [0.4, 0.4, 0.9], [0.0, 0.3, 0.2]]).double()
"""Of answers of two letters."""


def every_tree(table, branch):
    """All trees of two letters in two levels, left to right, as (probability, rewards of leaves, nodes)."""
    first_V, second_VV = (
        table(torch.tensor(rows)).softmax(-1).detach() for rows in ([0, MASK, MASK], [[0, a, MASK] for a in range(3)])
    )
    first_V, second_VV = first_V[1, :3], second_VV[:, 2, :3]
    for number, letters in enumerate(product(range(3), repeat=2 + 2 * branch)):
        above, leaves = letters[:2], [(letters[i // branch], b) for i, b in enumerate(letters[2:])]
        chance = math.prod(float(first_V[a]) for a in above) * math.prod(float(second_VV[a, b]) for a, b in leaves)
        nodes = [replace(completion((a, MASK), (0, -1), (0,)), parent=f"{number}") for a in above]
        nodes += [
            replace(completion((a, b), (-1, 1), (0,)), parent=f"{number}.{i // branch}")
            for i, (a, b) in enumerate(leaves)
        ]
        yield chance, [float(REWARD[a, b]) for a, b in leaves], nodes


@pytest.mark.parametrize("branch", [1, 2])
def test_the_expectation_over_all_trees_is_the_policy_gradient_of_each_level(branch):
    """With one token a level in a fixed order the transitions are exact: each node adds E[R grad log p] of its level,
    and with as many nodes in each level the sum is in the direction of the gradient of the expected reward."""
    table, algorithm = Letters(), method(num_generations=2 * branch, tree_branch_factor=branch, score_after_eos=True)
    nodes, advantage, trees = [], [], list(every_tree(table, branch))
    assert sum(chance for chance, _, _ in trees) == pytest.approx(1.0)
    for chance, rewards, of_tree in trees:
        values = node_values(rewards, (2, branch))
        local = [a for v, n in zip(values, (2, branch), strict=True) for a in local_advantages(v, n, "leave_one_out")]
        advantage += [a * chance * len(trees) for a in local]  # a mean over trees becomes the expectation
        nodes += of_tree
    count = len(trees) * 2 * branch
    rollout = first_rollout(nodes, advantage, len(nodes))
    _, result, _ = divided(algorithm, table, algorithm.step(rollout, update(0, 0, count)), 1)

    def of_level(level):
        """E[R grad log p] of a level's tokens; of both, the gradient of the expected reward."""
        first_V = table(torch.tensor([0, MASK, MASK])).log_softmax(-1)[1, :3]
        second_VV = table(torch.tensor([[0, a, MASK] for a in range(3)])).log_softmax(-1)[:, 2, :3]
        log_VV = first_V[:, None] + second_VV
        chosen = {0: first_V[:, None], 1: second_VV, None: log_VV}[level]
        return gradient_of(table, (log_VV.detach().exp() * REWARD * chosen).sum())

    size = 2 + 2 * branch
    wanted = -(2 * of_level(0) + 2 * branch * of_level(1)) / size
    torch.testing.assert_close(result, wanted, rtol=1e-8, atol=1e-11)
    exact = of_level(None)
    assert float(exact.norm()) > 0.01
    if branch == 1:
        torch.testing.assert_close(result, -exact / 2, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("beta", [0.0, 0.04])
def test_equal_rewards_have_no_gradient_at_all(beta):
    """Nor has self-distillation, since no child is better than its siblings."""
    table, algorithm = Table(), method(beta=beta, distillation=1.0)
    source = trees(algorithm, table, EQUAL)
    source.step(0)
    reference = (lambda step: table.losses(algorithm.inputs(step.copies)).detach()) if beta else None
    for number in (0, 3):
        loss, result, _ = divided(algorithm, table, algorithm.step(source.rollout, update(number, 0, 8)), 2, reference)
        if beta:
            assert abs(loss) < 1e-25 and float(result.abs().max()) < 1e-12
        else:
            assert loss == 0.0 and torch.count_nonzero(result) == 0


def test_later_steps_clip_the_ratio_to_the_policy_that_sampled():
    table, algorithm = Table(), method(epsilon=0.02)
    source = trees(algorithm, table)
    source.step(0)
    policy, step = moved(table), source.step(2)
    loss, _, metrics = divided(algorithm, policy, step, 1)
    wanted, clipped, count = 0.0, 0, 0
    for node, a in zip(source.rollout.completions, source.rollout.advantage, strict=True):
        now, before = by_parent(policy, node), by_parent(table, node)
        for i, v in now.items():
            rho = float((v - before[i]).detach().exp())
            bound = min(max(rho, 0.98), 1.02)
            wanted -= min(a * rho, a * bound) / len(now) / 12
            clipped, count = clipped + (a * bound < a * rho), count + 1
    assert loss == pytest.approx(wanted, abs=1e-5)
    assert metrics["clip_fraction"] == (clipped, count) and 0 < clipped < count


# Self-distillation


def test_strength_and_temperature_follow_the_time():
    algorithm = method(distillation=3e-3)
    assert algorithm.schedule(0, 100) == (0.0, 2.0)
    assert algorithm.schedule(100, 100) == (pytest.approx(3e-3), MIN_TEMPERATURE)
    strength, temperature = algorithm.schedule(50, 100)
    assert strength == pytest.approx(3e-3 * (math.e - 1) / (math.e**2 - 1))
    assert temperature == pytest.approx(2 * 0.5**0.7)
    every = [algorithm.schedule(number, 100) for number in range(101)]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in pairwise(every))
    assert algorithm.schedule(1000, 100) == algorithm.schedule(100, 100)
    fixed = method(distillation=3e-3, distillation_steps=50)
    assert fixed.schedule(25, 100) == algorithm.schedule(50, 100)


def test_the_schedule_is_over_the_steps_of_the_training():
    algorithm = method(distillation=3e-3)
    source = trees(algorithm, Table())
    source.step(0)
    source.policy.steps = 10
    strengths = [source.step_on(source.rollout, number).surrogate.distillation.strength for number in (0, 5, 10)]
    assert strengths == [algorithm.schedule(number, 10)[0] for number in (0, 5, 10)]
    assert strengths == sorted(set(strengths))


def test_targets_are_a_softmax_of_positive_advantages():
    """Position 4 has two tokens and a negative advantage, position 7 one token from two siblings."""
    at_A = torch.tensor([4, 4, 4, 7, 7, 9])
    token_A = torch.tensor([1, 2, 3, 5, 5, 1])
    advantage_A = torch.tensor([0.5, 1.0, -2.0, 0.5, 1.0, -1.0]).double()
    weight_A, log_q_A = targets(at_A, token_A, advantage_A, 0.5)
    low, high = math.exp(1) / (math.exp(1) + math.exp(2)), math.exp(2) / (math.exp(1) + math.exp(2))
    assert weight_A.tolist() == pytest.approx([low, high, 0.0, low, high, 0.0])
    assert log_q_A.tolist() == pytest.approx([math.log(low), math.log(high), 0.0, 0.0, 0.0, 0.0], abs=1e-12)
    weight_A, _ = targets(at_A, token_A, advantage_A, MIN_TEMPERATURE)
    assert weight_A.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0, 0.0], "at the end of the schedule, of the best sibling"
    none = targets(at_A[:0], token_A[:0], advantage_A[:0], 1.0)
    assert [len(part) for part in none] == [0, 0]


def test_a_single_token_is_learned_by_cross_entropy():
    log_p_A = torch.log_softmax(torch.randn(5, generator=torch.Generator().manual_seed(1)).double(), 0)[[3, 3]]
    weight_A, log_q_A = targets(torch.tensor([4, 4]), torch.tensor([3, 3]), torch.tensor([0.2, 0.9]).double(), 1.0)
    assert float(weight_A @ (log_q_A - log_p_A)) == pytest.approx(-float(log_p_A[0]))


def distillation(table, nodes, advantage, tau):
    """The term parent by parent and position by position, as the published code has it: KL of the distribution of the
    tokens of the children with a positive advantage that are active there."""
    families, terms = {}, []
    for node, a in zip(nodes, advantage, strict=True):
        families.setdefault(node.parent, []).append((node, a))
    for members in families.values():
        if len(members) == 1 or not (better := [(node, a) for node, a in members if a > 0]):
            continue
        w = torch.softmax(torch.tensor([a for _, a in better], dtype=torch.float64) / tau, 0)
        canvas = [
            MASK if at >= 0 else token for token, at in zip(members[0][0].tokens, members[0][0].set_at, strict=True)
        ]
        log_LV = table(torch.tensor([*members[0][0].prompt, *canvas])).log_softmax(-1)
        for i in range(4):
            q_V = torch.zeros(V, dtype=torch.float64)
            for (node, _), weight in zip(better, w.tolist(), strict=True):
                if i in node.written:
                    q_V[node.tokens[i]] += weight
            if float(q_V.sum()):
                q_V = q_V / q_V.sum()
                on = q_V > 0
                terms.append((q_V[on] * (q_V[on].log() - log_LV[len(members[0][0].prompt) + i][on])).sum())
    return torch.stack(terms).mean()


WIDE = (
    *(((2, 4, 1, 3), 1.0), ((2, 4, 0, 3), 0.9), ((2, 4, 0, EOS), 0.0), ((2, 4, EOS, 3), 1.0)),
    *(((1, 4, 1, 1), 0.3), ((1, 4, 0, 3), 0.2), ((1, 4, 3, 0), 0.25), ((1, 4, 2, 3), 0.1)),
)
"""A tree of two times four leaves."""


@pytest.mark.parametrize(("leaves", "branch"), [(LEAVES, 2), (WIDE, 4), (LEAVES, 1)])
def test_the_term_is_the_mean_divergence_over_parents_and_positions(leaves, branch):
    table = Table()
    options = {"num_generations": 4 if branch < 4 else 8, "tree_branch_factor": branch}
    plain, algorithm = method(**options), method(distillation=0.5, **options)
    source = trees(plain, table, leaves)
    source.step(0)
    strength, tau = algorithm.schedule(3, 4)
    without = divided(plain, table, plain.step(source.rollout, update(3, 0, 8, steps=4)), 1)
    step = algorithm.step(source.rollout, update(3, 0, 8, steps=4))
    loss, gradient, _ = divided(algorithm, table, step, 1)
    wanted = distillation(table, source.rollout.completions, source.rollout.advantage, tau)
    assert loss - without[0] == pytest.approx(strength * float(wanted.detach()), rel=1e-9)
    torch.testing.assert_close(gradient - without[1], strength * gradient_of(table, wanted), rtol=1e-9, atol=1e-12)
    value, share = algorithm.observe(step, table.losses(algorithm.inputs(step.copies)).detach())["distillation"]
    assert value == pytest.approx(float(wanted.detach()), rel=1e-9) and share == pytest.approx(1.0)
    assert float(wanted.detach()) > 0.1 and strength > 0.1
    assert algorithm.needs_values(step) and not plain.needs_values(plain.step(source.rollout, update(3, 0, 8, steps=4)))


# Division


@pytest.mark.parametrize("iteration", [0, 1])
def test_the_division_into_forwards_does_not_change_the_gradient(iteration):
    table, start, algorithm = Table(), Table(2), method(beta=0.1, distillation=1.0)
    source = trees(algorithm, table)
    source.step(0)
    step = algorithm.step(source.rollout, update(3, iteration, 8))
    policy = moved(table) if iteration else table
    reference = lambda step: start.losses(algorithm.inputs(step.copies)).detach()  # noqa: E731
    check_divisions(algorithm, policy, step, reference)


@pytest.mark.parametrize("aggregation", get_args(Aggregation))
def test_the_division_among_processes_does_not_change_the_gradient(aggregation):
    """Each has whole trees, and sees all siblings of a group."""
    table, algorithm = Table(), method(aggregation=aggregation, distillation=1.0)
    source = trees(algorithm, table)
    source.step(0)
    step = algorithm.step(source.rollout, update(3, 0, 8))
    whole = divided(algorithm, table, step, 1)[1]
    total = torch.zeros_like(whole)
    for part in (slice(0, 6), slice(6, 12)):
        mine = deepcopy(source.rollout)
        mine.completions, mine.advantage = source.rollout.completions[part], source.rollout.advantage[part]
        total += divided(algorithm, table, algorithm.step(mine, update(3, 0, 8)), 1)[1]
    torch.testing.assert_close(total, whole, rtol=1e-9, atol=1e-12)
    equal = deepcopy(source.rollout)
    equal.completions, equal.advantage = source.rollout.completions[:6], [0.0] * 6
    idle = algorithm.step(equal, update(3, 0, 8))
    assert algorithm.needs_values(step) and algorithm.needs_values(idle), "all processes make the same forwards"


@pytest.mark.parametrize("aggregation", ["sequence", "token", "transition"])
def test_the_weights_of_a_mean_sum_to_the_share_of_nodes_with_a_token(aggregation):
    algorithm = method(aggregation=aggregation, distillation=1.0)
    source = trees(algorithm, Table())
    source.step(0)
    weight = algorithm.step(source.rollout, update(0, 0, 8)).surrogate.weight_A.sum()
    assert float(weight) == pytest.approx(1.0 if aggregation == "token" else 10 / 12), "two nodes have no token"


def test_variants_and_defaults():
    paper, dare = (DTreeRPO.settle({"variant": variant}, SPEC) for variant in ("paper", "dare"))
    assert paper == DTreeRPO.Options() and paper.distillation_steps is None
    changed = {name for name in DTreeRPO.Options.model_fields if getattr(paper, name) != getattr(dare, name)}
    assert changed == {"variant", "distillation_steps"}
    assert dare.distillation_steps == 30_000 * dare.num_iterations
    resolved = [DTreeRPO(options, SPEC, 4).resolved_options(70) for options in (paper, dare)]
    assert [options.distillation_steps for options in resolved] == [70, 360_000], "recorded, so that it is not extended"
    assert DTreeRPO(paper, SPEC, 4).tree.branches == (4, 4) and DTreeRPO.default_batch({}) == 16
