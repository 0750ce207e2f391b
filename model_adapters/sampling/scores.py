"""Scores that rank open positions, highest first.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.tokens import OpenPositions, Proposal


class PositionScore:
    """The probability of the proposed token (LLaDA's low_confidence). Other scores derive from this class."""

    random: ClassVar[bool] = False
    """Does the score use random numbers?"""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        """The score of each position, [N]."""
        return confidence_N

    def order(self, proposal: Proposal, positions: OpenPositions, noise_N: Tensor | None) -> Proposal:
        """The proposal with the final scores; ``noise_N``: the published code's random numbers."""
        return proposal


class TopTwoMargin(PositionScore):
    """The most probable token's probability minus that of the next (Dream's topk_margin)."""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        top = probability_NV.topk(2, -1).values
        return top[:, 0] - top[:, 1]


class NegativeEntropy(PositionScore):
    """The negated entropy of the distribution (entropy-bounded sampling)."""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return torch.special.xlogy(probability_NV, probability_NV).sum(-1)


class DreamEntropy(NegativeEntropy):
    """The negated entropy as Dream computes it; near ties depend on its small constant."""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return (probability_NV * torch.log(probability_NV + 1e-10)).sum(-1)


class RandomOrder(PositionScore):
    """A uniform random number for each position (LLaDA's random)."""

    random = True

    def order(self, proposal: Proposal, positions: OpenPositions, noise_N: Tensor | None) -> Proposal:
        return replace(proposal, score_N=positions.uniform(Draw.ORDER) if noise_N is None else noise_N)


class LeftToRight(RandomOrder):
    """The position itself (SDAR's sequential)."""

    random = False

    def order(self, proposal: Proposal, positions: OpenPositions, noise_N: Tensor | None) -> Proposal:
        return replace(proposal, score_N=-positions.column_N.double())


@dataclass(frozen=True)
class DrawnOrder(PositionScore):
    """Positions drawn without replacement from softmax(score / temperature) (Dream's alg_temp).

    A draw without replacement takes the largest of probability / exponential noise.
    """

    score: PositionScore
    temperature: float
    random = True

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return self.score.of(probability_NV, confidence_N)

    def order(self, proposal: Proposal, positions: OpenPositions, noise_N: Tensor | None) -> Proposal:
        scaled_N = proposal.score_N / self.temperature
        if noise_N is None:
            noise_N = -torch.log(positions.uniform(Draw.ORDER))
            return replace(proposal, score_N=scaled_N.double() - noise_N.log())
        rows = int(positions.row_N.max()) + 1 if len(positions.row_N) else 1
        top_R = scaled_N.new_full((rows,), float("-inf")).scatter_reduce_(0, positions.row_N, scaled_N, "amax")
        weight_N = (scaled_N - top_R[positions.row_N]).exp()
        total_R = scaled_N.new_zeros(rows).scatter_add_(0, positions.row_N, weight_N)
        return replace(proposal, score_N=weight_N / total_R[positions.row_N] / noise_N)


RankBy = Literal["confidence", "margin", "entropy", "random"]
SCORES: Mapping[RankBy, PositionScore] = {
    "confidence": PositionScore(),
    "margin": TopTwoMargin(),
    "entropy": DreamEntropy(),
    "random": RandomOrder(),
}
