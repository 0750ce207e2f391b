"""As many positions as their confidences allow together."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import SCORES, PositionScore, RankBy
from dare_bench.model_adapters.sampling.strategies import Strategy


class Factor(Strategy):
    """Position n (from 1) of the sorted scores must reach ``1 - factor / (n + 1)``, the first always does, until the
    block is full (Fast-dLLM; approximate).

    The published count is the index of the first that fails, one more where that index is 0 or the last: so the last
    one is taken too when only it fails (kept, the ids depend on it).
    """

    name = "factor"
    source = "Fast-dLLM, arXiv 2505.22618, get_transfer_index_dynamic"

    factor: float = Field(gt=0)
    rank_by: RankBy = "confidence"

    @property
    def score(self) -> PositionScore:
        return SCORES[self.rank_by]

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        width = ranked.sorted_RW.shape[1]
        n = torch.arange(1, width + 1, device=ranked.sorted_RW.device, dtype=torch.float64)
        limit_W = 1.0 - self.factor / (n + 1)
        limit_W[0].fill_(-1.0)
        fails_RW = (ranked.sorted_RW.double() < limit_W) & ranked.open_RW
        index_W = torch.arange(width, device=fails_RW.device)
        first_R = torch.where(fails_RW, index_W, width).min(1).values
        last_R = ranked.count_R - 1
        count_R = torch.where(first_R < width, first_R, last_R)
        return torch.minimum(count_R + ((count_R == 0) | (count_R == last_R)), ranked.count_R)
