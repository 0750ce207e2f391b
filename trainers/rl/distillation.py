"""Self-distillation among siblings of a tree, by time (d-TreeRPO, arXiv 2512.09675, section 4).

The predictions on a canvas are drawn to the tokens that its better children wrote there: little and softly at first,
more and to the best child alone towards the end of the training.

Shape letters: U units (tokens that children wrote).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.trainers.rl.completions import Completion

MIN_TEMPERATURE = 1e-6
"""Of the target, as in the published code: the schedule ends at 0."""


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """The term of a step: ``strength`` times the divergence of the targets from the policy. ``weight_U`` is the weight
    of each unit in it, ``log_target_U`` the logarithm of its token's probability in the target."""

    weight_U: Tensor
    log_target_U: Tensor
    strength: float

    def divergence(self, value_U: Tensor) -> Tensor:
        """This process's part of the mean of KL(q || p) over parents and positions, in nats; ``value_U`` is log p."""
        return torch.dot(self.weight_U, self.log_target_U - value_U)


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


def targets(at_U: Tensor, token_U: Tensor, advantage_U: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """The target of self-distillation at each position of a parent, as the weight of each unit and the logarithm of its
    token's probability, float64 [U]: softmax(A / temperature) over the units of the position with A > 0. The weights of
    a position sum to 1; both are 0 for other units.

    Args:
        at_U: the position of each unit, equal for siblings that wrote there.
    """
    positive_U = advantage_U > 0
    _, place_U = at_U.unique(return_inverse=True)
    score_U = torch.where(positive_U, advantage_U / temperature, -torch.inf)
    most = torch.full((len(at_U),), -torch.inf, dtype=torch.float64).scatter_reduce(0, place_U, score_U, "amax")
    weight_U = torch.where(positive_U, (score_U - most[place_U]).exp(), 0.0)
    total = torch.zeros(len(at_U), dtype=torch.float64).index_add(0, place_U, weight_U)
    weight_U = torch.where(positive_U, weight_U / total[place_U], 0.0)
    _, same_U = torch.stack([at_U, token_U]).unique(dim=1, return_inverse=True)
    probability_U = torch.zeros(len(at_U), dtype=torch.float64).index_add(0, same_U, weight_U)[same_U]
    return weight_U, torch.where(positive_U, probability_U.clamp(min=1e-300).log(), 0.0)
