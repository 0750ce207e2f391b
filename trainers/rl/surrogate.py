"""The parts of a policy-gradient loss that do not look at the model: advantages, clipped ratios, KL, aggregation, the
correction for a sampler that is not the learner's policy, and self-distillation among siblings of a tree.

log p of a drawn token in the distribution that the sampler drew it from, and the learner's on the recorded canvas,
differ by more than rounding where the sampler caches approximately, cuts the distribution (top-p, top-k), suppresses
tokens or uses guidance. :func:`importance` weighs for it, truncated.

Shape letters: S completions, G completions of a prompt (a group), A actions (tokens or sequences).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions
from dare_bench.trainers.rl.options import Advantage, Aggregation
from dare_bench.trainers.steps import Step

Divergence = Literal["k1", "k2", "k3"]

STD_EPS = 1e-6
MAX_LOG_RATIO = 60.0
"""exp of it is finite, also in float32; a policy that moved so far has no useful ratio, and gets no gradient."""


def advantages(reward_S: Tensor, group: int, kind: Advantage = "standardized") -> Tensor:
    """Advantages of completions that stand group by group, float64 [S]; zero where a group's rewards are equal, and of
    a completion without a reward (NaN), which does not count in its group.

    ``mean``: r - mean (d1, arXiv 2504.12216); ``standardized``: divided by the group's standard deviation + 1e-6, with
    n - 1 (GRPO, arXiv 2402.03300); ``leave_one_out``: r - mean of the others = G / (G - 1) (r - mean) (RLOO, arXiv
    2402.14740; coupled-GRPO).
    """
    reward_PG = reward_S.double().view(-1, group)
    if reward_PG.isnan().any():
        scored_PG, result_PG = ~reward_PG.isnan(), torch.zeros_like(reward_PG)
        for reward_G, scored_G, result_G in zip(reward_PG, scored_PG, result_PG, strict=True):
            if scored_G.any():
                result_G[scored_G] = advantages(reward_G[scored_G], int(scored_G.sum()), kind)
        return result_PG.flatten()
    centered_PG = reward_PG - reward_PG.mean(1, keepdim=True)
    centered_PG = torch.where((reward_PG == reward_PG[:, :1]).all(1, keepdim=True), 0.0, centered_PG)
    if group == 1 or kind == "mean":
        return centered_PG.flatten()
    if kind == "leave_one_out":
        return (centered_PG * (group / (group - 1))).flatten()
    return (centered_PG / (reward_PG.std(1, keepdim=True) + STD_EPS)).flatten()


def clipped(
    log_ratio_A: Tensor, advantage_A: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's loss of each action, max(-A rho, -A clip(rho, 1 - low, 1 + high)), and where the clip has taken its
    gradient. ``dual``: for A < 0 the loss is at most -A dual (arXiv 1912.09729; DARE has 3)."""
    return _ppo(log_ratio_A.clamp(max=MAX_LOG_RATIO).exp(), advantage_A, low, high, dual)


def linearized(
    log_ratio_A: Tensor, advantage_A: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`clipped`, with 1 + log rho for rho where A >= 0: a lower bound of A rho, whose mean over draws bounds
    A exp(mean of log rho) for both signs of A (BGPO, arXiv 2510.11683, section 4)."""
    ratio_A = torch.where(advantage_A >= 0, 1 + log_ratio_A, log_ratio_A.clamp(max=MAX_LOG_RATIO).exp())
    return _ppo(ratio_A, advantage_A, low, high, dual)


def _ppo(ratio_A: Tensor, advantage_A: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, Tensor]:
    plain_A, bound_A = -advantage_A * ratio_A, -advantage_A * ratio_A.clamp(1 - low, 1 + high)
    loss_A, active_A = torch.maximum(plain_A, bound_A), bound_A > plain_A
    if dual is not None:
        limit_A = -advantage_A * dual
        over_A = (advantage_A < 0) & (loss_A > limit_A)
        loss_A, active_A = torch.where(over_A, limit_A, loss_A), active_A | over_A
    return loss_A, active_A


def clip_metrics(log_ratio_A: Tensor, active_A: Tensor, ratios: bool) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of actions that have an advantage: those whose gradient a clip has taken; With ``ratios``
    (where they are not all 1) also those with a ratio below and above 1, and the extremes of the ratios."""
    shares = {"clip_fraction": active_A}
    if ratios:
        shares |= {"clip_low": active_A & (log_ratio_A < 0), "clip_high": active_A & (log_ratio_A > 0)}
    metrics = {name: (float(clipped_A.sum()), float(len(active_A))) for name, clipped_A in shares.items()}
    if ratios and len(log_ratio_A):
        ratio_A = log_ratio_A.clamp(max=MAX_LOG_RATIO).exp()
        metrics |= {"ratio_min": (float(ratio_A.min()), 1.0), "ratio_max": (float(ratio_A.max()), 1.0)}
    return metrics


def divergence(log_ratio_A: Tensor, kind: Divergence = "k3") -> Tensor:
    """An estimate of KL(policy || reference) from lr = log policy - log reference of each action. k1 = lr, k2 = lr^2 /
    2, k3 = exp(-lr) - 1 + lr (Schulman, "Approximating KL Divergence", 2020)."""
    if kind == "k1":
        return log_ratio_A
    if kind == "k2":
        return log_ratio_A.square() / 2
    # In one expression with expm1: exp(-lr) - 1 alone would lose all digits near equality.
    return torch.expm1((-log_ratio_A).clamp(max=MAX_LOG_RATIO)) + log_ratio_A


def action_weights(
    kind: Aggregation, sample_A: Tensor, transition_A: Tensor | None, completions: int, actions: int, canvas: int
) -> Tensor:
    """The weight of each action's loss in the loss of the step, float64 [A].

    ``sequence``: the mean over completions of the mean over a completion's actions. ``token``: the mean over all
    actions. ``transition``: as ``sequence``, of the mean over a transition's actions (CJ-GRPO, arXiv 2509.23924).
    ``sequence_sum``: the mean over completions of the sum. ``constant_length``: that divided by the length of the
    canvas (Dr. GRPO, arXiv 2503.20783). ``transition_A``: the transition of each action, numbered over all completions;
    None: a completion has one; ``completions``, ``actions``: of the whole step, in all processes; ``canvas``: tokens of
    a completion's canvas.
    """
    if not len(sample_A):
        return torch.zeros(0, dtype=torch.float64)
    if kind == "token":
        return torch.full((len(sample_A),), 1.0 / max(actions, 1), dtype=torch.float64)
    if kind in ("sequence_sum", "constant_length"):
        divisor = completions * (canvas if kind == "constant_length" else 1)
        return torch.full((len(sample_A),), 1.0 / divisor, dtype=torch.float64)
    if kind == "sequence" or transition_A is None:
        return 1.0 / (torch.bincount(sample_A)[sample_A].double() * completions)
    size_A = torch.bincount(transition_A)[transition_A].double()
    first = torch.zeros(int(transition_A.max()) + 1, dtype=torch.long).index_copy_(0, transition_A, sample_A)
    transitions_A = torch.bincount(first[transition_A.unique()], minlength=int(sample_A.max()) + 1)[sample_A].double()
    return 1.0 / (size_A * transitions_A * completions)


def sampler_logprobs(actions: Actions, completions: Sequence[Completion], completion_A: Tensor) -> Tensor | None:
    """log p of the token of each action in the distribution that the sampler drew it from, float64 [A], in nats; None
    if it was not recorded. ``actions``: one for each scored token, in order; ``completion_A``: their places in
    ``completions``."""
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
    metric of how many were cut (Ionides, "Truncated Importance Sampling", 2008). TRL weighs the rollouts of other
    engines so. ``learner_A``: log p under the weights that sampled, as the learner computes it."""
    ratio_A = (learner_A - sampler_A).clamp(max=MAX_LOG_RATIO).exp()
    return ratio_A.clamp(max=cap), (float((ratio_A > cap).double().sum()), float(len(ratio_A)))


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What the loss of a step needs beside its copies. ``old_A`` None: the policy itself is the old one.
    ``completion_A`` is the completion of each action, counted in the rollout, ``drawn_A`` log p of its token in the
    distribution that the sampler drew it from; None where actions are not drawn tokens. ``distillation`` is a further
    term of the loss, of ``dtreerpo`` alone."""

    actions: Actions
    completion_A: Tensor
    advantage_A: Tensor
    weight_A: Tensor
    old_A: Tensor | None
    metrics: Metrics
    drawn_A: Tensor | None = None
    distillation: Distillation | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutStep(Step):
    """The part of an optimizer step that one process computes on a rollout."""

    surrogate: Surrogate


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer step on a rollout: step ``number`` (from 0) of the ``steps`` of a training with ``seed``, and inner
    iteration ``iteration`` (from 0) of its rollout. ``completions`` is their number in all processes."""

    number: int
    iteration: int
    completions: int
    seed: int
    steps: int


def surrogate_of(step: Step) -> Surrogate:
    """What the loss of a step on a rollout needs."""
    assert isinstance(step, RolloutStep)
    return step.surrogate


MIN_TEMPERATURE = 1e-6
"""Of the target, as in the published code: the schedule ends at 0."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The term of a step: ``strength`` times the divergence of the targets from the policy. ``weight_A`` is the weight
    of each action in it, ``log_target_A`` the logarithm of its token's probability in the target."""

    weight_A: Tensor
    log_target_A: Tensor
    strength: float

    def divergence(self, value_A: Tensor) -> Tensor:
        """This process's part of the mean of KL(q || p) over parents and positions, in nats; ``value_A`` is log p."""
        return torch.dot(self.weight_A, self.log_target_A - value_A)


def strength(progress: float, most: float, growth: float) -> float:
    """lambda(p) = most (exp(growth p) - 1) / (exp(growth) - 1), for the share p of the training that is over."""
    return most * math.expm1(growth * progress) / math.expm1(growth)


def temperature(progress: float, first: float, exponent: float) -> float:
    """tau(p) = first (1 - p)^exponent, at least ``MIN_TEMPERATURE``."""
    return max(first * (1 - progress) ** exponent, MIN_TEMPERATURE)


def distilled_positions(completions: Sequence[Completion], advantages: Sequence[float]) -> set[tuple[str, int]]:
    """The positions of canvases at which a child with siblings and a positive advantage wrote a token that counts, as
    (``parent``, position)."""
    siblings = Counter(completion.parent for completion in completions)
    return {
        (completion.parent, i)
        for completion, advantage in zip(completions, advantages, strict=True)
        if advantage > 0 and siblings[completion.parent] > 1
        for i in completion.written
    }


def targets(at_A: Tensor, token_A: Tensor, advantage_A: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The target of self-distillation at each position of a parent, as the weight of each action and the logarithm of
    its token's probability, float64 [A]: softmax(A / temperature) over the actions of the position with A > 0. The
    weights of a position sum to 1; both are 0 for other actions. ``at_A``: the position of each action, equal for
    siblings that wrote there."""
    positive_A = advantage_A > 0
    _, place_A = at_A.unique(return_inverse=True)
    score_A = torch.where(positive_A, advantage_A / temperature, -torch.inf)
    most = torch.full((len(at_A),), -torch.inf, dtype=torch.float64).scatter_reduce(0, place_A, score_A, "amax")
    weight_A = torch.where(positive_A, (score_A - most[place_A]).exp(), 0.0)
    total = torch.zeros(len(at_A), dtype=torch.float64).index_add(0, place_A, weight_A)
    weight_A = torch.where(positive_A, weight_A / total[place_A], 0.0)
    _, same_A = torch.stack([at_A, token_A]).unique(dim=1, return_inverse=True)
    probability_A = torch.zeros(len(at_A), dtype=torch.float64).index_add(0, same_A, weight_A)[same_A]
    return weight_A, torch.where(positive_A, probability_A.clamp(min=1e-300).log(), 0.0)
