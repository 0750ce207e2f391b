"""The parts of a policy-gradient loss that do not look at the model: advantages, clipped ratios, KL, aggregation.

Shape letters: S completions, G completions of a prompt (a group), U units (tokens or sequences).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Advantage = Literal["standardized", "mean", "leave_one_out"]
Divergence = Literal["k1", "k2", "k3"]
Aggregation = Literal["sequence", "token", "transition", "sequence_sum", "constant_length"]

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
    log_ratio_U: Tensor, advantage_U: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's loss of each unit, max(-A rho, -A clip(rho, 1 - low, 1 + high)), and where the clip has taken its gradient.

    ``dual``: for A < 0 the loss is at most -A dual (arXiv 1912.09729; DARE has 3).
    """
    return _ppo(log_ratio_U.clamp(max=MAX_LOG_RATIO).exp(), advantage_U, low, high, dual)


def linearized(
    log_ratio_U: Tensor, advantage_U: Tensor, low: float, high: float, dual: float | None = None
) -> tuple[Tensor, Tensor]:
    """As :func:`clipped`, with 1 + log rho for rho where A >= 0: a lower bound of A rho, whose mean over draws bounds
    A exp(mean of log rho) for both signs of A (BGPO, arXiv 2510.11683, section 4)."""
    ratio_U = torch.where(advantage_U >= 0, 1 + log_ratio_U, log_ratio_U.clamp(max=MAX_LOG_RATIO).exp())
    return _ppo(ratio_U, advantage_U, low, high, dual)


def _ppo(ratio_U: Tensor, advantage_U: Tensor, low: float, high: float, dual: float | None) -> tuple[Tensor, Tensor]:
    plain_U, bound_U = -advantage_U * ratio_U, -advantage_U * ratio_U.clamp(1 - low, 1 + high)
    loss_U, active_U = torch.maximum(plain_U, bound_U), bound_U > plain_U
    if dual is not None:
        limit_U = -advantage_U * dual
        over_U = (advantage_U < 0) & (loss_U > limit_U)
        loss_U, active_U = torch.where(over_U, limit_U, loss_U), active_U | over_U
    return loss_U, active_U


def clip_metrics(log_ratio_U: Tensor, active_U: Tensor, ratios: bool) -> dict[str, tuple[float, float]]:
    """(sum, count) by name, of units that have an advantage: those whose gradient a clip has taken; with ``ratios``
    (where they are not all 1) also those with a ratio below and above 1, and the extremes of the ratios."""
    shares = {"clip_fraction": active_U}
    if ratios:
        shares |= {"clip_low": active_U & (log_ratio_U < 0), "clip_high": active_U & (log_ratio_U > 0)}
    metrics = {name: (float(clipped_U.sum()), float(len(active_U))) for name, clipped_U in shares.items()}
    if ratios and len(log_ratio_U):
        ratio_U = log_ratio_U.clamp(max=MAX_LOG_RATIO).exp()
        metrics |= {"ratio_min": (float(ratio_U.min()), 1.0), "ratio_max": (float(ratio_U.max()), 1.0)}
    return metrics


def divergence(log_ratio_U: Tensor, kind: Divergence = "k3") -> Tensor:
    """An estimate of KL(policy || reference) from lr = log policy - log reference of each unit.

    k1 = lr, k2 = lr^2 / 2, k3 = exp(-lr) - 1 + lr (Schulman, "Approximating KL Divergence", 2020).
    """
    if kind == "k1":
        return log_ratio_U
    if kind == "k2":
        return log_ratio_U.square() / 2
    # In one expression with expm1: exp(-lr) - 1 alone would lose all digits near equality.
    return torch.expm1((-log_ratio_U).clamp(max=MAX_LOG_RATIO)) + log_ratio_U


def unit_weights(
    kind: Aggregation, sample_U: Tensor, transition_U: Tensor | None, completions: int, units: int, canvas: int
) -> Tensor:
    """The weight of each unit's loss in the loss of the step, float64 [U].

    ``sequence``: the mean over completions of the mean over a completion's units. ``token``: the mean over all units of
    the step. ``transition``: the mean over completions of the mean over a completion's transitions of the mean over a
    transition's units (CJ-GRPO, arXiv 2509.23924). ``sequence_sum``: the mean over completions of the sum over a
    completion's units. ``constant_length``: the same, divided by the length of the canvas, so that a unit weighs the
    same in short and in long completions (Dr. GRPO, arXiv 2503.20783).

    Args:
        transition_U: the transition of each unit, numbered over all completions; None: a completion has one.
        completions, units: of the whole step, in all processes; a completion without units counts.
        canvas: tokens of a completion's canvas.
    """
    if not len(sample_U):
        return torch.zeros(0, dtype=torch.float64)
    if kind == "token":
        return torch.full((len(sample_U),), 1.0 / max(units, 1), dtype=torch.float64)
    if kind in ("sequence_sum", "constant_length"):
        divisor = completions * (canvas if kind == "constant_length" else 1)
        return torch.full((len(sample_U),), 1.0 / divisor, dtype=torch.float64)
    if kind == "sequence" or transition_U is None:
        return 1.0 / (torch.bincount(sample_U)[sample_U].double() * completions)
    size_U = torch.bincount(transition_U)[transition_U].double()
    first = torch.zeros(int(transition_U.max()) + 1, dtype=torch.long).index_copy_(0, transition_U, sample_U)
    transitions_U = torch.bincount(first[transition_U.unique()], minlength=int(sample_U.max()) + 1)[sample_U].double()
    return 1.0 / (size_U * transitions_U * completions)
