"""Sub-blocks of a block, one after another."""

from __future__ import annotations

from collections.abc import Hashable
from typing import ClassVar

import torch
from pydantic import Field

from dare_bench.model_adapters.sampling.strategies import Selection, WrappedStrategy
from dare_bench.model_adapters.sampling.tokens import OpenPositions, Proposal


class SubBlocks(WrappedStrategy):
    """The inner strategy chooses among the positions of the first sub-block with masks, of ``length`` tokens each
    (Fast-dLLM v2; exact)."""

    source: ClassVar[str] = "Fast-dLLM v2, arXiv 2509.26328, modeling.py generate"

    length: int = Field(ge=1)

    @property
    def decision(self) -> Hashable:
        return self.length, super().decision

    def select(self, proposal: Proposal, positions: OpenPositions) -> Selection:
        row_N = positions.row_N
        part_N = (positions.column_N - positions.begin_R[row_N]) // self.length
        last_R = torch.full_like(positions.begin_R, torch.iinfo(torch.long).max)
        first_R = last_R.scatter_reduce(0, row_N, part_N, "amin")
        inside = (part_N == first_R[row_N]).nonzero()[:, 0]
        chosen = self.inner.select(proposal.only(inside), positions.only(inside))
        written_N = torch.zeros_like(positions.masked_N)
        written_N[inside] = chosen.written_N
        return Selection(written_N, chosen.margin_R)
