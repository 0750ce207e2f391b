"""All positions above a threshold if they are at least the quota, else the quota."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import even_schedule


def take_above(ranked: Ranked, threshold: float, quota_R: Tensor) -> Tensor:
    """The count, [R]: all above ``threshold`` if they are at least the quota, else the quota."""
    over_R = (ranked.sorted_RW > threshold).sum(1)
    return torch.where(over_R >= quota_R, over_R, torch.minimum(quota_R, ranked.count_R))


class Dynamic(Strategy):
    """All positions whose confidence is above ``threshold`` if they are at least the step's share of the block, else
    that share (SDAR's low_confidence_dynamic, LLaDA2; exact)."""

    name = "dynamic"
    source = "SDAR, JetAstra/SDAR generate.py, low_confidence_dynamic; LLaDA2 generate"

    threshold: float = Field(ge=0, le=1)

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return even_schedule(length, self.planned(length))[first:]

    def most_forwards(self, length: int) -> int:
        return min(self.planned(length), length)

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return self.planned(length)

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        return take_above(ranked, self.threshold, positions.quota_R)
