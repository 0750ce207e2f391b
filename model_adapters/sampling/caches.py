"""Cache policies: the columns that forwards compute, store and read.

Shape letters: E cache slots.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.attention import NO_CACHE, CachePolicy, Row


class ExactCache(CachePolicy):
    """Block-causal attention: a finished block never changes, and is committed with the next one's first forward. Where
    states predict the next token, that forward computes the block before in any case, for the first token."""

    used = shared = True

    def window(self, row: Row) -> tuple[int, int]:
        before = row.begin - row.sampler.block_length if row.opens_by_state_before else row.begin
        return min(row.pages.columns, max(before, 0)), row.stop

    def writes(self, row: Row) -> tuple[int, int]:
        return row.pages.columns, row.begin

    def reads(self, row: Row) -> Tensor:
        return row.pages.slots[: row.window()[0]]


class CleanCache(CachePolicy):
    """A clean prefix, which attends causally: the tokens before a block never change, and are committed with the
    block's first forward."""

    used = True

    def _before(self, row: Row) -> int:
        """The columns that earlier forwards have committed: those before the last block that had one."""
        since = next((i for i, steps in enumerate(reversed(row.steps), 1) if steps), 0)
        return row.begin if row.opened else row.begin - since * row.sampler.block_length if since else 0

    def window(self, row: Row) -> tuple[int, int]:
        return self._before(row), row.stop

    def writes(self, row: Row) -> tuple[int, int]:
        return self._before(row), row.begin

    def reads(self, row: Row) -> Tensor:
        return row.pages.slots[: self._before(row)]


class PrefixCache(CachePolicy):
    """Fast-dLLM: the first forward of a block computes all columns and stores those before the block; later forwards
    compute from the block on."""

    used = approximate = True

    def window(self, row: Row) -> tuple[int, int]:
        return super().window(row) if not row.opened else (row.begin, len(row.canvas))

    def writes(self, row: Row) -> tuple[int, int]:
        return (0, row.begin) if not row.opened else (0, 0)

    def reads(self, row: Row) -> Tensor:
        return row.pages.slots[:0] if not row.opened else row.pages.slots


class DualCache(PrefixCache):
    """Fast-dLLM: like the prefix cache, but the columns after the block are stored too; later forwards compute only the
    block."""

    block_alone = True

    def window(self, row: Row) -> tuple[int, int]:
        return super().window(row) if not row.opened else (row.begin, row.stop)

    def writes(self, row: Row) -> tuple[int, int]:
        return (0, len(row.canvas)) if not row.opened else (0, 0)

    def reads(self, row: Row) -> Tensor:
        slots = super().reads(row)
        return torch.cat([slots[: row.begin], slots[row.stop :]])


CACHES: Mapping[str, CachePolicy] = {
    "none": NO_CACHE,
    "exact": ExactCache(),
    "clean": CleanCache(),
    "prefix": PrefixCache(),
    "dual": DualCache(),
}
