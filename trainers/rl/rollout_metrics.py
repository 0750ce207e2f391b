"""What is logged of a rollout: sums and counts by name (``objective.Metrics``), of the answers of a process."""

from __future__ import annotations

from collections.abc import Sequence

from dare_bench.trainers.rl.completions import Completion
from dare_bench.types import Generation, Reward


def reward_metrics(
    rewards: Sequence[Reward], answers: Sequence[Generation], informative: tuple[float, float]
) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of the rewarded answers of this process. ``informative``: of prompts."""
    count = len(rewards)
    lengths = [answer.tokens_to_eos for answer in answers]
    metrics: dict[str, tuple[float, float]] = {
        "reward": (sum(reward.value for reward in rewards), count),
        "reward_square": (sum(reward.value**2 for reward in rewards), count),
        "accuracy": (sum(reward.accuracy for reward in rewards), count),
        "accuracy_square": (sum(reward.accuracy**2 for reward in rewards), count),
        "completion_length": (float(sum(lengths)), count),
        "informative_groups": informative,
    }
    for name in sorted({name for reward in rewards for name in reward.terms}):
        metrics[f"reward/{name}"] = (sum(reward.terms.get(name, 0.0) for reward in rewards), count)
    return metrics


def entropy_metric(completions: Sequence[Completion], answers: Sequence[Generation]) -> tuple[float, float]:
    """Sum and count of -log p of the written tokens that are scored, in the distributions that drew them."""
    drawn = [
        event.logprob
        for completion, answer in zip(completions, answers, strict=True)
        for event in answer.trajectory or ()
        if event.op == "set" and 0 <= event.position < completion.scored and event.logprob is not None
    ]
    return -sum(drawn), len(drawn)
