"""Rewards of the answers that the forwards of a rollout predict, and the forwards that are worth training on (MDPO,
arXiv 2508.13148).

Each forward proposes a token at every mask, so that it predicts a whole answer, which has a reward. A forward is scored
by the change of the reward that it brings, and by the rewards after it; its advantage is within the same forward of the
group's completions.

Shape letters: B completions that stand group by group, P prompts, G completions of a prompt, T forwards, K forwards
that are trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.trainers.rl.completions import Prediction
from dare_bench.trainers.rl.surrogate import Advantage, advantages
from dare_bench.types import Event, Generation, Reward, RewardPrompt

Scores = Callable[[Sequence[RewardPrompt], Sequence[str]], list[Reward]]
"""The rewards of answers to prompts."""


def distinct_rewards(
    prompts: Sequence[RewardPrompt], texts: Sequence[Sequence[str]], scores: Scores
) -> list[list[Reward]]:
    """The rewards of several answers to each prompt. Equal answers to a prompt are scored once: most forwards predict
    what the one before predicted."""
    places = {(id(prompt), text): prompt for prompt, answers in zip(prompts, texts, strict=True) for text in answers}
    rewards = scores(list(places.values()), [text for _, text in places])
    known = dict(zip(places, rewards, strict=True))
    return [[known[id(prompt), text] for text in answers] for prompt, answers in zip(prompts, texts, strict=True)]


def rewards_of_forwards(
    answers: Sequence[Generation], prompts: Sequence[RewardPrompt], scores: Scores
) -> list[list[Reward]]:
    """The rewards of the answers that the forwards of each completion predict, in order."""
    texts = [answer.prediction_texts or [""] * len(answer.predictions or [[]]) for answer in answers]
    return distinct_rewards(prompts, texts, scores)


def continued(rewards: Sequence[Sequence[float]]) -> Tensor:
    """Rewards as a table, float64 [B, T]: a completion that took fewer forwards than another keeps its last answer."""
    most = max(len(row) for row in rewards)
    return torch.tensor([[*row, *[row[-1]] * (most - len(row))] for row in rewards], dtype=torch.float64)


def step_scores(reward_BT: Tensor) -> Tensor:
    """r_t - r_(t-1) + 1 + mean(r_(t+1), ..., r_T), float64 [B, T]; the first forward has r_1 for the difference, and
    the last one r_T for the mean.

    The constant 1 is the published one; it cancels in advantages.
    """
    reward_BT = reward_BT.double()
    change_BT = reward_BT.diff(dim=1, prepend=torch.zeros_like(reward_BT[:, :1]))
    later_BT = reward_BT[:, 1:].flip(1).cumsum(1) / torch.arange(1, reward_BT.shape[1])
    return change_BT + 1 + torch.cat([later_BT.flip(1), reward_BT[:, -1:]], 1)


def step_advantages(score_BT: Tensor, group: int, kind: Advantage = "standardized") -> Tensor:
    """The advantage of each forward within the same forward of the group's completions, float64 [B, T]."""
    score_PTG = score_BT.view(-1, group, score_BT.shape[1]).transpose(1, 2)
    advantage_PTG = advantages(score_PTG.flatten(), group, kind).view(score_PTG.shape)
    return advantage_PTG.transpose(1, 2).reshape(score_BT.shape)


def chosen_steps(advantage_BT: Tensor, group: int, count: int) -> Tensor:
    """The forwards of each prompt with the largest sum of |advantage| over its completions, ascending, int64 [P, K],
    where K = min(count, T). Of equal sums the earlier forward is chosen."""
    size_PT = advantage_BT.abs().view(-1, group, advantage_BT.shape[1]).sum(1)
    return size_PT.argsort(dim=1, descending=True, stable=True)[:, :count].sort(1).values


@dataclass(frozen=True)
class Chosen:
    """The forwards of a completion that are trained on, with their advantages; ``informative``: some completion of the
    prompt has an advantage other than 0."""

    steps: tuple[int, ...]
    advantages: tuple[float, ...]
    informative: bool


def choose(rewards: Sequence[Sequence[float]], group: int, count: int, kind: Advantage) -> list[Chosen]:
    """The forwards that are trained on, from the rewards of the predictions of all completions."""
    advantage_BT = step_advantages(step_scores(continued(rewards)), group, kind)
    step_BK = chosen_steps(advantage_BT, group, count).repeat_interleave(group, 0)
    advantage_BK = advantage_BT.gather(1, step_BK)
    informative_P = (advantage_BK != 0).view(-1, group * step_BK.shape[1]).any(1)
    return [
        Chosen(tuple(steps), tuple(values), informative)
        for steps, values, informative in zip(
            step_BK.tolist(), advantage_BK.tolist(), informative_P.repeat_interleave(group).tolist(), strict=True
        )
    ]


def predictions(
    answer: Generation, chosen: Chosen, mask_id: int, scored: Callable[[Sequence[int]], int]
) -> tuple[Prediction, ...]:
    """What the chosen forwards predicted; nothing of a forward that a shorter answer did not take.

    Args:
        scored: the number of leading tokens of an answer that count.
    """
    recorded, trained = answer.predictions or [], []
    for step, advantage in zip(chosen.steps, chosen.advantages, strict=True):
        if step < len(recorded):
            tokens = recorded[step]
            masked = masked_before(answer.trajectory or (), step, len(tokens))
            filled = tuple(place for place in masked if tokens[place] != mask_id)
            trained.append(Prediction(tuple(tokens), filled, scored(tokens), advantage))
    return tuple(trained)


def masked_before(events: Sequence[Event], step: int, length: int) -> list[int]:
    """The positions of a response of ``length`` tokens that were masked before a forward."""
    masked = [True] * length
    for event in events:
        if event.step < step and 0 <= event.position < length:
            masked[event.position] = event.op == "remask"
    return [position for position, is_masked in enumerate(masked) if is_masked]
