"""As many positions as a bound on their entropies allows."""

from __future__ import annotations

from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import NegativeEntropy, PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy

_ENTROPY = NegativeEntropy()


class EntropyBound(Strategy):
    """From the lowest entropy on, while the entropies taken before sum to at most ``bound``, until the block is full
    (what SDAR calls ``entropy_bounded``; exact)."""

    name = "entropy_bound"
    source = "EB-Sampler, arXiv 2505.24857, as in SDAR's entropy_bounded and SGLang's EBSampling"

    bound: float = Field(ge=0)

    @property
    def score(self) -> PositionScore:
        return _ENTROPY

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        spent_RW = (-ranked.sorted_RW).nan_to_num(posinf=0.0).cumsum(1) + ranked.sorted_RW.nan_to_num(neginf=0.0)
        return ((spent_RW <= self.bound) & ranked.open_RW).sum(1)
