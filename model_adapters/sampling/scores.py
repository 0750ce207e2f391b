"""Scores that rank open positions, highest first.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.records import Offer


class PositionScore:
    """The probability of the proposed token (LLaDA's low_confidence). Other scores derive from this class."""

    random: ClassVar[bool] = False
    """Does the score use random numbers?"""
    keeps: ClassVar[bool] = False
    """Are the probabilities of all tokens offered, too (``Offer.probability_NV``)?"""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        """The score of each position, [N]."""
        return confidence_N

    def order(self, offer: Offer, draws: Draws) -> Offer:
        """The offer with the final scores."""
        return offer


class WithDistribution(PositionScore):
    """The probability of the proposed token, beside those of all tokens."""

    keeps = True


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

    def order(self, offer: Offer, draws: Draws) -> Offer:
        return replace(offer, score_N=draws.order(offer.positions))


class LeftToRight(PositionScore):
    """The position itself (SDAR's sequential)."""

    def order(self, offer: Offer, draws: Draws) -> Offer:
        return replace(offer, score_N=-offer.positions.column_N.double())


@dataclass(frozen=True)
class DrawnOrder(PositionScore):
    """Positions drawn without replacement from softmax(score / temperature) (Dream's alg_temp)."""

    score: PositionScore
    temperature: float
    random = True

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return self.score.of(probability_NV, confidence_N)

    def order(self, offer: Offer, draws: Draws) -> Offer:
        return replace(offer, score_N=draws.weighted_order(offer.score_N / self.temperature, offer.positions))


RankBy = Literal["confidence", "margin", "entropy", "random"]
SCORES: Mapping[RankBy, PositionScore] = {
    "confidence": PositionScore(),
    "margin": TopTwoMargin(),
    "entropy": DreamEntropy(),
    "random": RandomOrder(),
}
