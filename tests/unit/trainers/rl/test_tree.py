"""Trees of completions, and steps of a rollout: values, advantages, which of them are trained on, and canvases that
go on from canvases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from statistics import mean
from types import SimpleNamespace

import pytest
import torch
from completions import prompts

from dare_bench.errors import UsageError
from dare_bench.loading import load
from dare_bench.trainers.rl.dtreerpo import DTreeRPO
from dare_bench.trainers.rl.mdpo import (
    choose,
    chosen_steps,
    continued,
    distinct_rewards,
    masked_before,
    predictions,
    step_advantages,
    step_scores,
)
from dare_bench.trainers.rl.surrogate import advantages, distilled_positions
from dare_bench.trainers.rl.tree import TreeShape, local_advantages, node_values
from dare_bench.trainers.steps import StepShape
from dare_bench.training.spec import train_spec
from dare_bench.types import Capabilities, Event, Generation, Reward, RewardPrompt

REWARDS = (0.1, 0.9, 0.4, 0.0, 1.0, 1.0, 0.3, 0.7)


# Values and advantages


def test_sizes_of_the_papers_tree():
    """4 children of the root with 4 each: 16 leaves, 20 segments, 5 copies; the root makes it 21 nodes."""
    tree = TreeShape((4, 4))
    assert (tree.counts, tree.leaves, tree.nodes, tree.parents) == ((4, 16), 16, 20, 5)
    assert [tree.turn(level, 128) for level in range(3)] == [0, 64, 128]
    assert [TreeShape((2, 2, 2)).turn(level, 7) for level in range(4)] == [0, 2, 4, 7]


def test_the_root_of_a_balanced_tree_is_the_mean_reward():
    for branches in ((2, 4), (2, 2, 2), (8,), (4, 1, 2)):
        values = node_values(REWARDS, branches)
        assert [len(level) for level in values] == list(TreeShape(branches).counts)
        assert mean(values[0]) == pytest.approx(mean(REWARDS))
        assert values[-1] == list(REWARDS)
    assert node_values(REWARDS, (2, 4))[0] == pytest.approx([0.35, 0.75])


@pytest.mark.parametrize("kind", ["leave_one_out", "mean", "standardized"])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_the_local_advantages_of_siblings_sum_to_zero(count, kind):
    advantage = local_advantages(REWARDS, count, kind)
    assert all(sum(advantage[i : i + count]) == pytest.approx(0, abs=1e-12) for i in range(0, 8, count))
    assert max(map(abs, advantage)) > 0.1


def test_a_local_advantage_is_against_the_mean_of_the_siblings():
    advantage = local_advantages(REWARDS, 4, "leave_one_out")
    for i in range(8):
        siblings = [REWARDS[j] for j in range(8) if j // 4 == i // 4 and j != i]
        assert advantage[i] == pytest.approx(REWARDS[i] - mean(siblings))


def test_the_baseline_of_an_only_child_is_zero():
    assert local_advantages(REWARDS, 1, "leave_one_out") == list(REWARDS)


def test_equal_rewards_in_another_order_give_no_advantage():
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in their last bit; the values of the parents do not."""
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1
    above = node_values((0.1, 0.2, 0.3, 0.3, 0.2, 0.1), (2, 3))[0]
    assert local_advantages(above, 2, "leave_one_out") == [0.0, 0.0]


# Trees of a network


class ModelPolicy:
    """A network that samples, with rewards in turn. Notes its batches."""

    steps = 10
    has_dropout = False

    def __init__(self, loaded, rows=16):
        self.loaded, self.rows, self.batches, self.nfe = loaded, rows, [], 0

    def forwards(self, request):
        return self.loaded.forwards(request)

    def generate(self, requests):
        self.batches.append(list(requests))
        answers = {sample.request.key: sample for sample in self.loaded.generate(requests, max_rows=self.rows)}
        self.nfe += sum(sample.answer.nfe for sample in answers.values())
        return [answers[request.key] for request in requests]

    def rewards(self, rows, texts):
        return [Reward(REWARDS[i % 8], 0.0, {"part": 1.0}) for i in range(len(texts))]

    def write_lines(self, name, lines):
        pass

    def gather(self, value):
        return [value]


@pytest.fixture(scope="module")
def llada():
    return load("tiny-llada-base", device="cpu").loaded


def grown(loaded, shape=None, process=0, rows=16, rollout=0, fields=None, **options):
    """A rollout of trees of 8 tokens, and the policy that sampled it."""
    given = {"num_generations": 8, "tree_branch_factor": 2, "tree_contraction_factor": 3, "num_iterations": 1}
    given |= {"max_completion_length": 8, "temperature": 1.2, "rollout": {"steps": 8, **(fields or {})}, **options}
    method = DTreeRPO(DTreeRPO.settle(given, loaded.spec), loaded.spec, 8)
    source = method.source(prompts(2), shape or StepShape(16), 3, process)
    policy = ModelPolicy(loaded, rows)
    source.attach(policy)
    return source.sample(rollout), policy, method


def plain(rollout):
    """Its records without log-probabilities, which are equal up to rounding."""
    return [replace(node, logprobs=()) for node in rollout.completions]


def canvas(node, mask_id):
    """Before the node's own segment."""
    return tuple(mask_id if at >= 0 else token for token, at in zip(node.tokens, node.set_at, strict=True))


def paths(nodes, branches=(2, 2, 2)):
    """The nodes of each path of one tree: breadth first, as they stand in a rollout."""
    starts = [0, 2, 6]
    for path in product(*map(range, branches)):
        at = [sum(branch << (level - i) for i, branch in enumerate(path[: level + 1])) for level in range(3)]
        yield [nodes[start + i] for start, i in zip(starts, at, strict=True)]


def test_the_segments_of_a_path_partition_its_response(llada):
    rollout, policy, _ = grown(llada)
    mask_id = llada.spec.mask_id
    assert len(rollout.completions) == 28 and [len(batch) for batch in policy.batches] == [4, 8, 16]
    for tree in (rollout.completions[:14], rollout.completions[14:]):
        for path in paths(tree):
            written = [[i for i, at in enumerate(node.set_at) if at >= 0] for node in path]
            assert sorted(i for part in written for i in part) == list(range(8))
            assert [len(part) for part in written] == [2, 3, 3], "8 tokens in forwards 0-1, 2-4 and 5-7"
            assert [sorted(node.set_at)[-len(part) :] for node, part in zip(path, written, strict=True)] == [
                [0, 1], [2, 3, 4], [5, 6, 7]]  # fmt: skip
            assert canvas(path[0], mask_id) == (mask_id,) * 8
            assert canvas(path[1], mask_id) == path[0].tokens and canvas(path[2], mask_id) == path[1].tokens
            assert mask_id not in path[2].tokens


def test_a_child_goes_on_from_where_its_parent_ended(llada):
    """Two blocks of four forwards each: the levels end after 2, 5 and 8 forwards, the second one inside a block."""
    _, policy, _ = grown(llada, fields={"block_length": 4})
    for batch, (step, start, end) in zip(policy.batches, ((0, None, 2), (2, 2, 5), (1, 5, None)), strict=True):
        assert {(r.start_step, r.start_forward, r.end_forward) for r in batch} == {(step, start, end)}
    assert policy.nfe == 2 * (2 * 2 + 4 * 3 + 8 * 3)


def test_siblings_share_a_parent_and_draw_apart(llada):
    rollout, _, _ = grown(llada)
    families = {}
    for node in rollout.completions:
        families.setdefault(node.parent, []).append(node)
    assert len(families) == 14 and all(len(members) == 2 for members in families.values())
    assert len({node.key for node in rollout.completions}) == 28
    for members in families.values():
        assert len({canvas(node, llada.spec.mask_id) for node in members}) == 1
    assert sum(a.tokens != b.tokens for a, b in families.values()) > 8


def test_values_go_up_and_advantages_are_local(llada):
    rollout, _, _ = grown(llada)
    for tree in range(2):
        values = node_values(REWARDS, (2, 2, 2))
        part = slice(14 * tree, 14 * tree + 14)
        assert rollout.rewards[part] == [value for level in values for value in level]
        wanted = [a for level in values for a in local_advantages(level, 2, "leave_one_out")]
        assert rollout.advantage[part] == wanted
    assert rollout.metrics["reward"] == (pytest.approx(2 * sum(REWARDS)), 16), "of leaves"
    assert rollout.metrics["informative_groups"] == (2.0, 2.0)
    scored = [len(node.written) for node in rollout.completions]
    assert rollout.scored_total == sum(scored) == rollout.metrics["written_nll"][1]
    assert rollout.distilled_total == len(distilled_positions(rollout.completions, rollout.advantage)) > 0


def test_a_tree_costs_what_is_documented(llada):
    """4 x T / 2 + 16 x T / 2 forwards for 16 leaves."""
    options = {"num_generations": 16, "tree_branch_factor": 4, "tree_contraction_factor": 2}
    _, policy, _ = grown(llada, StepShape(16), **options)
    assert policy.nfe == 10 * 8


def test_trees_do_not_depend_on_rows_or_processes(llada):
    whole, _, _ = grown(llada)
    assert plain(grown(llada, rows=3)[0]) == plain(whole)
    halves = [grown(llada, StepShape(8, processes=2), process)[0] for process in (0, 1)]
    assert plain(halves[0]) + plain(halves[1]) == plain(whole), "a tree belongs to one process"
    assert halves[0].advantage + halves[1].advantage == whole.advantage
    assert halves[0].scored_total + halves[1].scored_total == whole.scored_total
    other = grown(llada, rollout=1)[0]
    assert not {node.key for node in other.completions} & {node.key for node in whole.completions}


def test_a_path_that_is_finished_before_its_last_segment_goes_on_as_it_is(llada):
    """A sampler that writes everything at once leaves nothing to the segments below."""
    rollout, policy, _ = grown(llada, fields={"threshold": 1e-6})
    for path in paths(rollout.completions[:14]):
        assert [len(node.written) > 0 for node in path] == [True, False, False]
        assert path[0].tokens == path[1].tokens == path[2].tokens
    assert policy.nfe == 4, "the root's children alone"


# Refusals


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"num_generations": 10},
            r"num_generations=10: .* a multiple of .* = 4, at least 8; give 8, or another branch factor",
        ),
        ({"num_generations": 4}, r"num_generations=4: .* = 4, at least 8; give 8, or another branch factor"),
        ({"tree_branch_factor": 0}, "tree_branch_factor"),
        ({"importance_cap": 2.0}, "does not score tokens on the canvases that they were drawn from"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(options, says, llada):
    with pytest.raises(UsageError, match=says):
        DTreeRPO(DTreeRPO.settle(options, llada.spec), llada.spec, 8)


def test_half_a_tree_for_a_process_is_refused(llada):
    with pytest.raises(UsageError, match=r"3 trees of 8 completions .* cannot be divided among 2 processes"):
        grown(llada, StepShape(12, processes=2))


def checked(loaded, **options):
    method = DTreeRPO(DTreeRPO.settle({"num_generations": 8, **options}, loaded.spec), loaded.spec, 8)
    spec = train_spec(method="dtreerpo", model="m", task="dare_sort", output_path="out", per_device_train_batch_size=8)
    method.check(spec, loaded, prompts(2))


def test_what_the_sampler_cannot_do_is_refused_before_the_training(llada):
    checked(llada)
    with pytest.raises(UsageError, match=r"tree_contraction_factor=2: .* takes 1; give at most 1, or more --rollout"):
        checked(llada, rollout={"steps": 1})
    with pytest.raises(UsageError, match=r"cfg_scale=0.5: the learner of dtreerpo has no guidance; omit it"):
        checked(llada, rollout={"cfg_scale": 0.5})
    blind = SimpleNamespace(
        capabilities=Capabilities(trajectory=True, logprobs=True, row_keyed_randomness=True, canvas=True),
        spec=llada.spec,
    )
    with pytest.raises(UsageError, match=r"can end an answer after a given forward \(capability 'end_forward'\)"):
        checked(blind)


def test_families_that_decode_block_by_block_are_refused():
    spec = load("tiny-sdar-base", device="cpu").loaded.spec
    with pytest.raises(UsageError, match=r"decodes block by block\); use cj_grpo"):
        DTreeRPO(DTreeRPO.settle({}, spec), spec, 8)


KINDS = ("standardized", "mean", "leave_one_out")


def rewards(completions=6, forwards=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 3, (completions, forwards), generator=g).double() / 2


def test_the_score_by_hand():
    """Rewards 0, 1, 0.5, 1: the change, 1, and the mean of what follows (at the end the last reward)."""
    scores = step_scores(torch.tensor([[0.0, 1.0, 0.5, 1.0]]))
    assert scores.tolist() == [pytest.approx([0 + 1 + 2.5 / 3, 1 + 1 + 0.75, -0.5 + 1 + 1.0, 0.5 + 1 + 1.0])]


@pytest.mark.parametrize("seed", range(5))
def test_the_score_is_the_published_formula(seed):
    """A loop over the definition, with means over 1 to T - 1 later rewards."""
    reward_BT = rewards(4, 7, seed)
    for row, scores in zip(reward_BT.tolist(), step_scores(reward_BT).tolist(), strict=True):
        for t, score in enumerate(scores):
            later = row[t + 1 :] or [row[-1]]
            assert score == pytest.approx(row[t] - (row[t - 1] if t else 0.0) + 1 + sum(later) / len(later))


@pytest.mark.parametrize("kind", KINDS)
def test_the_constant_cancels(kind):
    scores = step_scores(rewards())
    torch.testing.assert_close(step_advantages(scores, 3, kind), step_advantages(scores - 1, 3, kind))
    assert float(step_advantages(scores, 3, kind).abs().max()) > 0.1


@pytest.mark.parametrize("kind", KINDS)
def test_equal_rewards_in_all_forwards_and_completions_have_no_advantage(kind):
    advantage_BT = step_advantages(step_scores(torch.full((6, 5), 0.3)), 3, kind)
    assert torch.count_nonzero(advantage_BT) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_one_forward_is_grpo_on_twice_the_reward_plus_one(kind):
    reward_B = rewards(6, 1)
    assert step_scores(reward_B).tolist() == (2 * reward_B + 1).tolist()
    wanted_B = advantages(2 * reward_B[:, 0] + 1, 3, kind)
    torch.testing.assert_close(step_advantages(step_scores(reward_B), 3, kind)[:, 0], wanted_B)


@pytest.mark.parametrize("kind", KINDS)
def test_each_forward_is_compared_within_its_group(kind):
    score_BT = step_scores(rewards(6, 5, 3))
    advantage_BT = step_advantages(score_BT, 3, kind)
    for t in range(5):
        torch.testing.assert_close(advantage_BT[:, t], advantages(score_BT[:, t], 3, kind))
    torch.testing.assert_close(advantage_BT.view(2, 3, 5).sum(1), torch.zeros(2, 5).double(), atol=1e-9, rtol=0)


def test_the_largest_sums_are_chosen_in_the_order_of_forwards():
    advantage_BT = torch.tensor([[0.1, -2.0, 0.0, 1.0], [0.1, 2.0, 0.0, -1.0], [0.0, 0, 0, 5.0], [0.0, 0, 0, 5.0]])
    assert chosen_steps(advantage_BT, 2, 2).tolist() == [[1, 3], [0, 3]]
    assert chosen_steps(advantage_BT, 2, 1).tolist() == [[1], [3]]
    for count in (4, 5, 100):
        assert chosen_steps(advantage_BT, 2, count).tolist() == [[0, 1, 2, 3]] * 2, "all of them, sorted"


def test_a_shorter_completion_keeps_its_last_reward():
    assert continued([[0.0, 1.0], [0.5], [0.0, 0.0, 1.0]]).tolist() == [[0, 1, 1], [0.5, 0.5, 0.5], [0, 0, 1]]


def test_what_is_chosen_has_the_advantages_of_its_completion():
    values = [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    chosen = choose(values, 2, 2, "mean")
    advantage_BT = step_advantages(step_scores(torch.tensor(values)), 2, "mean")
    assert [each.steps for each in chosen] == [(1, 2), (1, 2), (0, 1), (0, 1)]
    for row, each in zip(advantage_BT.tolist(), chosen, strict=True):
        assert list(each.advantages) == [row[step] for step in each.steps]
    assert [each.informative for each in chosen] == [True, True, False, False]


def test_equal_answers_to_a_prompt_are_scored_once():
    calls = []

    def scores(prompts, texts):
        pairs = list(zip(prompts, texts, strict=True))
        calls.append([(prompt.where, text) for prompt, text in pairs])
        return [Reward(float(len(text)), 0.0, {"where": len(prompt.where)}) for prompt, text in pairs]

    one, two = RewardPrompt("", "", "t", "first"), RewardPrompt("", "", "t", "second one")
    result = distinct_rewards([one, one, two], [["a", "a", "bb"], ["bb"], ["a", "a"]], scores)
    assert [[reward.value for reward in row] for row in result] == [[1, 1, 2], [2], [1, 1]]
    assert [row[0].terms["where"] for row in result] == [5, 5, 10]
    assert calls == [[("first", "a"), ("first", "bb"), ("second one", "a")]]


def test_masks_before_a_forward_follow_remasks():
    events = [Event(0, "set", 1, 5, 0.5), Event(0, "set", -1, 4, 0.5), Event(1, "set", 0, 6, 0.5),
              Event(1, "remask", 1, 9, 0.5), Event(2, "set", 1, 7, 0.5)]  # fmt: skip
    assert [masked_before(events, step, 3) for step in range(4)] == [[0, 1, 2], [0, 2], [1, 2], [2]]


def test_predictions_are_of_the_chosen_forwards_that_were_taken():
    """Position 2 was never proposed a token (9 is the mask), and the third forward does not exist."""
    events = [Event(0, "set", 0, 3, 0.5), Event(1, "set", 1, 4, 0.5)]
    answer = Generation([3, 4, 9], "", 2, "length", trajectory=events, predictions=[[3, 5, 9], [3, 4, 9]])
    (chosen,) = choose([[0.0, 1.0]], 1, 4, "mean")
    first, second = predictions(answer, chosen, 9, lambda tokens: 2)
    assert (first.tokens, first.masked, first.scored) == ((3, 5, 9), (0, 1), 2)
    assert (second.tokens, second.masked) == ((3, 4, 9), (1,))
    longer = type(chosen)((0, 1, 2), (0.1, 0.2, 0.3), True)
    assert [p.advantage for p in predictions(answer, longer, 9, len)] == [0.1, 0.2]
