"""Scores and advantages of the forwards of a rollout, and which of them are trained on (MDPO)."""

from __future__ import annotations

import pytest
import torch

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
from dare_bench.trainers.rl.surrogate import advantages
from dare_bench.types import Event, Generation, Reward, RewardPrompt

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
