"""Sub-blocks of a block: written one after another, and cached.

Shape letters: E cache slots.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.attention import Row
from dare_bench.model_adapters.sampling.caches import ExactCache
from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.strategies.wrapped import WrappedStrategy


class SubBlocks(WrappedStrategy):
    """The inner strategy chooses among the positions of the first sub-block with masks, of ``length`` tokens each
    (Fast-dLLM v2; exact)."""

    source: ClassVar[str] = "Fast-dLLM v2, arXiv 2509.26328, modeling.py generate"

    length: int = Field(ge=1)

    @property
    def static(self) -> bool:
        return self.inner.static

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        row_N, last = positions.row_N, torch.iinfo(torch.long).max
        part_N = (positions.column_N - positions.begin_R[row_N]) // self.length
        live_N = positions.live(torch.ones_like(positions.masked_N))
        last_R = torch.full_like(positions.begin_R, last)
        first_R = last_R.scatter_reduce(0, row_N, torch.where(live_N, part_N, last), "amin")
        inside_N = live_N & (part_N == first_R[row_N])
        chosen = self.inner.select(replace(offer, positions=replace(positions, live_N=inside_N)))
        return chosen.only(inside_N & chosen.written_N, positions)


@dataclass(frozen=True)
class SubBlockCache(ExactCache):
    """Fast-dLLM v2's use_block_cache: the keys and values of the block's other sub-blocks of ``length`` tokens are
    kept, too, and become stale. They are computed again while the first token of the sub-block is a mask."""

    approximate = follows_canvas = True

    length: int

    def _inside(self, row: Row) -> tuple[int, int] | None:
        """The columns of the first sub-block with masks, where the next forward computes nothing else."""
        masked = (row.canvas[row.begin : row.stop] == row.mask_id).nonzero()[:, 0]
        low = row.begin + int(masked[0]) // self.length * self.length
        kept = row.pages.block_begin == row.begin and row.canvas[low] != row.mask_id
        return (low, low + self.length) if kept else None

    def window(self, row: Row) -> tuple[int, int]:
        return self._inside(row) or super().window(row)

    def writes(self, row: Row) -> tuple[int, int]:
        keeps = self._inside(row) is None and row.canvas[row.begin] != row.mask_id
        return row.pages.columns, row.stop if keeps else row.begin

    def reads(self, row: Row) -> Tensor:
        inside = self._inside(row)
        if inside is None:
            return super().reads(row)
        low, high = (column - row.begin for column in inside)
        slots = row.pages.block_slots
        return torch.cat([row.pages.slots, slots[:low], slots[high:]])
