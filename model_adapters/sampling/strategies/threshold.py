"""All positions that reach a threshold, at least one."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import SCORES, PositionScore, RankBy
from dare_bench.model_adapters.sampling.strategies import Strategy


class Threshold(Strategy):
    """The best position always, the others where the score is at least ``threshold``, until the block is full
    (Fast-dLLM; approximate)."""

    name = "threshold"
    source = "Fast-dLLM, arXiv 2505.22618, get_transfer_index"

    threshold: float = Field(ge=0, le=1)
    rank_by: RankBy = "confidence"

    @property
    def score(self) -> PositionScore:
        return SCORES[self.rank_by]

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        over_RW = ranked.sorted_RW >= self.threshold
        return torch.minimum(over_RW.sum(1).clamp(min=1), ranked.count_R)
