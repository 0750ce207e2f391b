"""What is logged of a rollout: sums and counts by name (``objective.Metrics``), of the answers of a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import stdev

from dare_bench.trainers.rl.completions import Completion
from dare_bench.types import Generation, Reward


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
    """(sum, count) by name, of groups.

    Args:
        value_B: rewards of completions that stand group by group; NaN: none.
        informative: of each group, has a completion an advantage?
    """
    group = len(value_B) // len(informative)
    groups = [value_B[i : i + group] for i in range(0, len(value_B), group)]
    scored = [[value for value in values if not math.isnan(value)] for values in groups]
    return {
        "informative_groups": _sum(informative),
        "reward_group_std": _sum([stdev(values) for values in scored if len(values) > 1]),
    }


def redraw_metrics(redrawn: int, informative: Sequence[bool]) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of groups.

    Args:
        redrawn: groups that were drawn again, each as often as it was.
        informative: of each group that is trained on.
    """
    return {"redrawn_groups": (float(redrawn), float(len(informative))), "trained_groups": _sum(informative)}


def _sum(values: Sequence[float]) -> tuple[float, float]:
    return float(sum(values)), float(len(values))


def written_nll(completions: Sequence[Completion], answers: Sequence[Generation]) -> tuple[float, float]:
    """Sum and count of -log p of the written tokens that are scored, in the distributions that drew them.

    It estimates the entropy of these distributions without bias only if the sampler chooses positions without looking
    at what it drew there; in the order of confidence it writes where it is surest, and the mean is lower.
    """
    drawn = [
        event.logprob
        for completion, answer in zip(completions, answers, strict=True)
        for event in answer.trajectory or ()
        if event.op == "set" and 0 <= event.position < completion.scored and event.logprob is not None
    ]
    return -sum(drawn), len(drawn)
