"""From the left."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import LeftToRight, PositionScore
from dare_bench.model_adapters.sampling.strategies.quota import BlockQuota

_LEFT = LeftToRight()


class Sequential(BlockQuota):
    """The open positions among the first open one and the ``quota - 1`` after it (SDAR's sequential, writing masked
    positions only; exact)."""

    name = "sequential"
    source = "SDAR, JetAstra/SDAR generate.py, sequential"

    @property
    def score(self) -> PositionScore:
        return _LEFT

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        count_R = (ranked.sorted_RW > ranked.sorted_RW[:, :1] - positions.quota_R[:, None]).sum(1)
        return torch.minimum(count_R, ranked.count_R)
