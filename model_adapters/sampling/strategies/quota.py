"""As many positions in every forward as a schedule says, in some order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import Ranked
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.scores import LeftToRight, PositionScore
from dare_bench.model_adapters.sampling.strategies import Ends, RankedStrategy


def even_schedule(count: int, steps: int) -> list[int]:
    """The number of ``count`` positions that each step unmasks: ``count // steps``, the remainder in the first steps.

    Source: ML-GSAI/LLaDA generate.py, get_num_transfer_tokens.
    """
    base, rest = divmod(count, steps)
    return [base + (i < rest) for i in range(steps)]


class Quota(RankedStrategy):
    """The masks of a block spread evenly over its steps (LLaDA's published sampler; exact)."""

    name = "quota"
    source = "LLaDA, ML-GSAI/LLaDA generate.py"
    rule = "the most confident, so many a step"
    exact = "LLaDA"
    ends: ClassVar[Ends] = "schedule"

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return even_schedule(masks, max(1, self.planned(length) - first))

    def least_forwards(self, masks: int, due: Sequence[int]) -> int:
        return next((i for i, total in enumerate(accumulate(due), 1) if total >= masks), len(due))

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        return torch.minimum(positions.quota_R, ranked.count_R)


class BlockQuota(Quota):
    """The block length spread evenly over the steps, until the block is full: a first block that holds prompt tokens
    needs fewer (SDAR's low_confidence_static; exact)."""

    name = "block_quota"
    source = "SDAR, JetAstra/SDAR generate.py, low_confidence_static"
    rule = "the most confident, so many a step until full"
    exact = "SDAR"
    ends = "planned"

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return even_schedule(length, self.planned(length))[first:]


class Sequential(BlockQuota):
    """The open positions among the first open one and the ``quota - 1`` after it (SDAR's sequential, writing masked
    positions only; exact)."""

    name = "sequential"
    source = "SDAR, JetAstra/SDAR generate.py, sequential"
    rule = "the first ones from left to right"
    exact = "SDAR"

    @property
    def score(self) -> PositionScore:
        return LeftToRight()

    def count(self, ranked: Ranked, positions: Positions) -> Tensor:
        count_R = (ranked.sorted_RW > ranked.sorted_RW[:, :1] - positions.quota_R[:, None]).sum(1)
        return torch.minimum(count_R, ranked.count_R)


class Ascending(Quota):
    """Step i of a block writes 2^i positions, and the last step what is left (ASS, the ascending step-size scheduler;
    approximate). A block of 2^S - 1 tokens takes S forwards, which is the default for blocks up to that length; the
    published code takes S forwards for 2^S tokens: ``steps=S``."""

    name = "ascending"
    source = "ASS, arXiv 2509.23924"
    rule = "the most confident, twice as many each step"
    exact = ""

    def planned(self, length: int) -> int:
        return length.bit_length() if self.steps is None else self.steps

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        due, left = [], masks
        for step in range(first, self.planned(length) - 1):
            due.append(min(left, 2**step))
            left -= due[-1]
        return [*due, left]

    def most_forwards(self, length: int) -> int:
        return sum(due > 0 for due in self.schedule(length, 0, length))
