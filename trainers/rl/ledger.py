"""The ledger of a rollout: for each drawn token, log p in the distribution that the sampler drew it from, against the
learner's log p on the canvas that the sampler recorded.

Both are the same function of the same canvas where the sampler is exact, so that they differ by rounding only. They
differ where the sampler computes with an approximate cache (keys and values of earlier canvases), and by design where
it cuts the distribution (top-p, top-k), suppresses tokens or uses guidance, which a learner does not. Then the policy
that is improved is not the policy that sampled; ``importance`` are the weights that correct for it, truncated.

Shape letters: A actions, each of them one drawn token (``estimators.trajectory``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions
from dare_bench.trainers.rl.surrogate import MAX_LOG_RATIO


def sampler_logprobs(actions: Actions, completions: Sequence[Completion], completion_A: Tensor) -> Tensor | None:
    """log p of the token of each action in the distribution that the sampler drew it from, float64 [A], in nats; None
    if the sampler did not record it.

    Args:
        actions: of drawn tokens: one action for each scored token, in the same order.
        completion_A: the completion of each action, counted in ``completions``.
    """
    if any(len(c.logprobs) != len(c.tokens) for c in completions):
        return None
    column_A = actions.copies.batch.column_T[actions.copies.at_N].tolist()
    drawn = [
        completions[number].logprobs[column - len(completions[number].prompt)]
        for number, column in zip(completion_A.tolist(), column_A, strict=True)
    ]
    return torch.tensor(drawn, dtype=torch.float64)


def gap_metrics(learner_A: Tensor, sampler_A: Tensor) -> Metrics:
    """The mean and the largest absolute difference of the log-probabilities, in nats."""
    if not len(learner_A):
        return {}
    gap_A = (learner_A - sampler_A).abs()
    return {"sampler_gap": (float(gap_A.sum()), float(len(gap_A))), "sampler_gap_max": (float(gap_A.max()), 1.0)}


def importance(learner_A: Tensor, sampler_A: Tensor, cap: float) -> tuple[Tensor, tuple[float, float]]:
    """Truncated importance weights min(p of the learner / p of the sampler, cap) of drawn tokens, float64 [A], and the
    metric of how many were cut (Ionides, "Truncated Importance Sampling", 2008; TRL weighs the rollouts of other
    engines so).

    Args:
        learner_A: log p under the weights that sampled, as the learner computes it.
    """
    ratio_A = (learner_A - sampler_A).clamp(max=MAX_LOG_RATIO).exp()
    return ratio_A.clamp(max=cap), (float((ratio_A > cap).double().sum()), float(len(ratio_A)))
