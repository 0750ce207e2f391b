"""A quota, and what earlier steps rejected, above a threshold."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import Threshold


class Carry(Threshold):
    """Of the best ``quota`` positions the first always, the others where they reach ``threshold``; what a step rejects
    is added to the next one's quota, and forwards follow until the block is full (Fast-dLLM's Dream; approximate)."""

    name = "carry"
    source = "Fast-dLLM, arXiv 2505.22618, Dream generation_utils.py, confidence_threshold"
    rule = "all above a confidence; a quota is carried on"
    exact = ""

    steps: int = Field(ge=1)

    @property
    def decision(self) -> Strategy:
        return self  # ``count`` reads ``steps``

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        # A block that goes on was open as a whole before its first forward.
        return [(length if first else masks) // self.planned(length)] * self.limit(length, ())

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        # Everything except what later steps are scheduled to write.
        most_R = ranked.count_R - positions.quota_R * (self.steps - 1 - positions.step_R).clamp(min=0)
        return torch.minimum(super().count(ranked, positions), most_R)
