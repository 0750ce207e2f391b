"""Shares of the masks left that follow a grid of times, from 1 down to ``eps``.

Shape letters: N open positions, R rows, S steps.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.scores import SCORES, DrawnOrder, PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import Quota


def time_ratios(steps: int, eps: float) -> Tensor:
    """``1 - s / t`` of every step on the grid from 1 down to eps, 1 in the last: float32 [steps].

    Float32 on purpose: other arithmetic truncates to other integers (Dream generation_utils.py, _sample).
    """
    t = torch.linspace(1, eps, steps + 1)
    ratio = 1 - t[1:] / t[:-1]
    ratio[-1] = 1.0
    return ratio


class TimeQuota(Quota):
    """Step i unmasks ``int(masks left * (1 - s / t))`` on a grid of times, the last one all (Dream; exact). The masks
    of the prompt count too."""

    name = "time_quota"
    source = "Dream, DreamLM/Dream generation_utils.py"
    rule = "a share by a grid of times"
    exact = "Dream"

    order_temperature: float = Field(default=0.0, ge=0)
    """Above 0, positions are drawn from softmax(score / this)."""
    eps: float = Field(default=1e-3, gt=0, lt=1)
    """The last time of the grid."""

    @property
    def score(self) -> PositionScore:
        score = SCORES[self.rank_by]
        return DrawnOrder(score, self.order_temperature) if self.order_temperature > 0 else score

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        schedule, left = [], masks + before
        for ratio in time_ratios(self.planned(length), self.eps)[first:]:
            schedule.append(int(torch.tensor(float(left)) * ratio))
            left -= schedule[-1]
        return schedule


UNIT = 2.0**-53
"""Of probabilities that are written as quotas, which it divides exactly."""


class Bernoulli(Strategy):
    """Every masked position is written with probability ``1 - s / t`` of the step, the rest in the last (Dream's
    origin; exact). ``steps`` must be given."""

    name = "bernoulli"
    source = "Dream, DreamLM/Dream generation_utils.py, origin"
    rule = "random ones by a grid of times"
    exact = "Dream"
    ends = "planned"
    static: ClassVar[bool] = True

    steps: int = Field(ge=1)
    eps: float = Field(default=1e-3, gt=0, lt=1)
    """The last time of the grid."""

    @property
    def score(self) -> PositionScore:
        return SCORES["random"]

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        """The probabilities of the steps in units of ``UNIT``, which are exact."""
        return [int(ratio / UNIT) for ratio in time_ratios(self.steps, self.eps)[first:].tolist()]

    def most_forwards(self, length: int) -> int:
        return self.steps

    def select(self, offer: Offer) -> Decision:
        ratio_R = offer.positions.quota_R.double() * UNIT
        return offer.write(offer.score_N < ratio_R[offer.positions.row_N])
