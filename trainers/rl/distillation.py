"""Self-distillation among siblings of a tree, by time (d-TreeRPO, arXiv 2512.09675, section 4).

The predictions on a canvas are drawn to the tokens that its better children wrote there: little and softly at first,
more and to the best child alone towards the end of the training.

Shape letters: A actions (tokens that children wrote).
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
    weights of a position sum to 1; both are 0 for other actions.

    Args:
        at_A: the position of each action, equal for siblings that wrote there.
    """
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
