"""The groups of a rollout, and what is logged of it: sums and counts by name (``objective.Metrics``).

Groups whose rewards do not differ teach nothing. Dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) draws them
again in their place, from another prompt, up to a limit. Draw d of a place in rollout k is the prompt at that place in
another order of the data: a function of (seed, k, place, d), so that a resumed or divided training draws the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import stdev

from dare_bench.trainers.rl.completions import Completion
from dare_bench.types import Generation, Reward, RewardPrompt


def numbers(rewards: Sequence[Reward]) -> list[float]:
    """The values of rewards; NaN where an answer cannot be scored."""
    return [math.nan if reward.value is None else reward.value for reward in rewards]


def reward_metrics(rewards: Sequence[Reward], answers: Sequence[Generation]) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of the rewarded answers of this process."""
    count = len(rewards)
    values = [reward.value for reward in rewards if reward.value is not None]
    right = [reward.accuracy for reward in rewards if reward.accuracy is not None]
    metrics: dict[str, tuple[float, float]] = {
        "reward": _sum(values),
        "reward_square": _sum([value**2 for value in values]),
        "accuracy": _sum(right),
        "accuracy_square": _sum([value**2 for value in right]),
        "unscored": (float(count - len(values)), count),
        "completion_length": _sum([answer.tokens_to_eos for answer in answers]),
        "truncated": _sum([answer.finish_reason == "length" for answer in answers]),
    }
    for name in sorted({name for reward in rewards for name in reward.terms}):
        metrics[f"reward/{name}"] = _sum([reward.terms[name] for reward in rewards if name in reward.terms])
    return metrics


def group_metrics(value_B: Sequence[float], informative: Sequence[bool]) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of groups. ``value_B``: rewards of completions that stand group by group; NaN: none;
    ``informative``: of each group, has a completion an advantage?"""
    group = len(value_B) // len(informative)
    groups = [value_B[i : i + group] for i in range(0, len(value_B), group)]
    scored = [[value for value in values if not math.isnan(value)] for values in groups]
    return {
        "informative_groups": _sum(informative),
        "reward_group_std": _sum([stdev(values) for values in scored if len(values) > 1]),
    }


def redraw_metrics(redrawn: int, informative: Sequence[bool]) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of groups. ``redrawn``: groups that were drawn again, each as often as it was;
    ``informative``: of each group that is trained on."""
    return {"redrawn_groups": (float(redrawn), float(len(informative))), "trained_groups": _sum(informative)}


def _sum(values: Sequence[float]) -> tuple[float, float]:
    return float(sum(values)), float(len(values))


def written_nll(completions: Sequence[Completion], answers: Sequence[Generation]) -> tuple[float, float]:
    """Sum and count of -log p of the written tokens that are scored, in the distributions that drew them. It estimates
    their entropy without bias only if the sampler chooses positions without looking at what it drew there."""
    drawn = [
        event.logprob
        for completion, answer in zip(completions, answers, strict=True)
        for event in answer.trajectory or ()
        if event.op == "set" and 0 <= event.position < completion.scored and event.logprob is not None
    ]
    return -sum(drawn), len(drawn)


@dataclass(frozen=True)
class Scored:
    """A completion with its answer and its reward."""

    prompt: RewardPrompt
    completion: Completion
    answer: Generation
    reward: Reward


@dataclass
class Groups:
    """The groups of a rollout: the completions of this process, and of all processes group by group the rewards (NaN:
    none), the advantages, and the draw that each group is from (0: the first)."""

    mine: list[Scored]
    value_B: list[float]
    advantage_B: list[float]
    draws: list[int]

    def informative(self) -> list[bool]:
        """Of each group: has a completion an advantage?"""
        group = len(self.value_B) // len(self.draws)
        return [any(self.advantage_B[i : i + group]) for i in range(0, len(self.value_B), group)]
