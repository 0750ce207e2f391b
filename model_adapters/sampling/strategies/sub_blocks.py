"""Sub-blocks of a block, one after another."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import Field

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import WrappedStrategy


class SubBlocks(WrappedStrategy):
    """The inner strategy chooses among the positions of the first sub-block with masks, of ``length`` tokens each
    (Fast-dLLM v2; exact)."""

    source: ClassVar[str] = "Fast-dLLM v2, arXiv 2509.26328, modeling.py generate"

    length: int = Field(ge=1)

    @property
    def decision(self) -> Hashable:
        return self.length, super().decision

    @property
    def static(self) -> bool:
        return self.inner.static

    def select(self, offer: Offer, positions: Positions) -> Decision:
        row_N, last = positions.row_N, torch.iinfo(torch.long).max
        part_N = (positions.column_N - positions.begin_R[row_N]) // self.length
        live_N = positions.live(torch.ones_like(positions.masked_N))
        last_R = torch.full_like(positions.begin_R, last)
        first_R = last_R.scatter_reduce(0, row_N, torch.where(live_N, part_N, last), "amin")
        inside_N = live_N & (part_N == first_R[row_N])
        chosen = self.inner.select(offer, replace(positions, live_N=inside_N))
        return chosen.only(inside_N & chosen.written_N, positions)
