"""Each position on its own."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import SCORES, PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import time_ratios


class Bernoulli(Strategy):
    """Every masked position is written with probability ``1 - s / t`` of the step, the rest in the last (Dream's
    origin; exact). ``steps`` must be given."""

    name = "bernoulli"
    source = "Dream, DreamLM/Dream generation_utils.py, origin"
    framed = False  # of the grid of times, whose rounding decides

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

    def most_forwards(self, length: int) -> int:
        return self.steps

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return self.steps

    def select(self, offer: Offer, positions: Positions) -> Decision:
        ratio_S = self.ratio_S.to(offer.score_N.device)
        return offer.write(positions, offer.score_N < ratio_S[positions.step_R[positions.row_N]])
