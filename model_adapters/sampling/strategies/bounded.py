"""The best positions that a bound accepts, at least one."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import NegativeEntropy, PositionScore
from dare_bench.model_adapters.sampling.strategies import RankedStrategy, Strategy
from dare_bench.model_adapters.sampling.strategies.quota import even_schedule


class Threshold(RankedStrategy):
    """The best position always, the others where the score is at least ``threshold``, until the block is full
    (Fast-dLLM; approximate)."""

    name = "threshold"
    source = "Fast-dLLM, arXiv 2505.22618, get_transfer_index"
    rule = "all above a confidence"

    threshold: float = Field(ge=0, le=1)

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        over_RW = ranked.sorted_RW >= self.threshold
        return torch.minimum(over_RW.sum(1).clamp(min=1), ranked.count_R)


class Factor(RankedStrategy):
    """Position n (from 1) of the sorted scores must reach ``1 - factor / (n + 1)``, the first always does, until the
    block is full (Fast-dLLM; approximate).

    The published count is the index of the first that fails, one more where that index is 0 or the last: so the last
    one is taken too when only it fails (kept, the ids depend on it).
    """

    name = "factor"
    source = "Fast-dLLM, arXiv 2505.22618, get_transfer_index_dynamic"
    rule = "confident ones, fewer for more"

    factor: float = Field(gt=0)

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        width = ranked.sorted_RW.shape[1]
        n = torch.arange(1, width + 1, device=ranked.sorted_RW.device, dtype=torch.float64)
        limit_W = 1.0 - self.factor / (n + 1)
        limit_W[0].fill_(-1.0)
        holds_RW = (ranked.sorted_RW.double() >= limit_W) & ranked.open_RW
        lead_R = holds_RW.long().cumprod(1).sum(1)
        one_more_R = (lead_R == 0) | (lead_R == ranked.count_R - 1)
        return torch.minimum(lead_R + one_more_R, ranked.count_R)


class EntropyBound(Strategy):
    """From the lowest entropy on, while the entropies taken before sum to at most ``bound``, until the block is full
    (what SDAR calls ``entropy_bounded``; exact)."""

    name = "entropy_bound"
    source = "EB-Sampler, arXiv 2505.24857, as in SDAR's entropy_bounded and SGLang's EBSampling"
    rule = "low entropies up to a sum"
    exact = "SDAR"

    bound: float = Field(ge=0)

    @property
    def score(self) -> PositionScore:
        return NegativeEntropy()

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        return take_within(ranked, self.bound)


class EbSampler(Strategy):
    """As ``entropy_bound`` with the bound ``gamma``, over all positions of the answer (approximate)."""

    name = "eb_sampler"
    source = "EB-Sampler, arXiv 2505.24857, as in NEUIR/PC-Sampler src/generate.py generate_with_eb_sampler"
    rule = "low entropies up to a sum, in the whole answer"
    exact = ""
    whole = True

    gamma: float = Field(default=0.1, ge=0)

    @property
    def score(self) -> PositionScore:
        return NegativeEntropy()

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        return take_within(ranked, self.gamma)


class Dynamic(Strategy):
    """All positions whose confidence is above ``threshold`` if they are at least the step's share of the block, else
    that share (SDAR's low_confidence_dynamic, LLaDA2; exact)."""

    name = "dynamic"
    source = "SDAR, JetAstra/SDAR generate.py, low_confidence_dynamic; LLaDA2 generate"
    rule = "all above a confidence, at least a share"
    exact = "SDAR, LLaDA2"
    ends = "planned"

    threshold: float = Field(ge=0, le=1)

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return even_schedule(length, self.planned(length))[first:]

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        return take_above(ranked, self.threshold, positions.quota_R)


def take_within(ranked: Ranked, bound: float) -> Tensor:
    """The count, [R]: from the lowest entropy on, while the entropies before sum to at most the bound."""
    spent_RW = (-ranked.sorted_RW).nan_to_num(posinf=0.0).cumsum(1) + ranked.sorted_RW.nan_to_num(neginf=0.0)
    return ((spent_RW <= bound) & ranked.open_RW).sum(1)


def take_above(ranked: Ranked, threshold: float, quota_R: Tensor | int) -> Tensor:
    """The count, [R]: all above ``threshold`` if they are at least the quota, else the quota."""
    over_R = (ranked.sorted_RW > threshold).sum(1)
    return torch.where(over_R >= quota_R, over_R, ranked.count_R.clamp(max=quota_R))
