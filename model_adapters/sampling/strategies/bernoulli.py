"""Each position on its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import SCORES, PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import time_ratios

UNIT = 2.0**-53


class Bernoulli(Strategy):
    """Every masked position is written with probability ``1 - s / t`` of the step, the rest in the last (Dream's
    origin; exact). ``steps`` must be given."""

    name = "bernoulli"
    source = "Dream, DreamLM/Dream generation_utils.py, origin"
    steps: int = Field(ge=1)
    eps: float = Field(default=1e-3, gt=0, lt=1)
    """The last time of the grid."""

    @property
    def score(self) -> PositionScore:
        return SCORES["random"]

    @property
    def static(self) -> bool:
        return True

    @property
    def decision(self) -> Hashable:
        return self

    @property
    def ratio_S(self) -> Tensor:
        return time_ratios(self.steps, self.eps)

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        """The probabilities of the steps in units of ``UNIT``, which are exact."""
        return [int(ratio / UNIT) for ratio in self.ratio_S[first:].tolist()]

    def most_forwards(self, length: int) -> int:
        return self.steps

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return self.steps

    def select(self, offer: Offer, positions: Positions) -> Decision:
        ratio_R = positions.quota_R.double() * UNIT
        return offer.write(positions, offer.score_N < ratio_R[positions.row_N])
