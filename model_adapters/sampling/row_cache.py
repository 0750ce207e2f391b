"""The cache of the rows of a loop: what a forward reads of it and writes to it.

Shape letters: E cache slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Cached
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.pages import CachePage, PagePool, page_sizes
from dare_bench.model_adapters.sampling.state import RowState

FIRST_SLOTS = 1024


@dataclass(frozen=True)
class Commit:
    """What a forward stores of a row with a shared cache: new pages, and the block itself where ``block``."""

    row: RowState
    pages: list[CachePage]
    block: bool


class RowCache:
    """The keys and values of a network (``store``), and the owner of their slots (``pool``); empty at first."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self.store = KVStore(network.arch, FIRST_SLOTS, device, next(network.parameters()).dtype)
        self.pool = PagePool(FIRST_SLOTS, self.store.grow)
        self.commits: list[Commit] = []
        """Of the forward that is packed."""

    def admit(self, row: RowState) -> bool:
        """Give a row the pages of its prompt that are shared. False: another row is about to commit the next one."""
        if not row.cache.shared or row.pages.columns:
            return True
        return self.pool.admit(row.pages, row.canvas[: row.begin].tolist(), row.sampler.block_length)

    def access(self, rows: Sequence[RowState], spans: Sequence[tuple[int, int]]) -> Cached:
        """The reads of all rows, whose windows are packed in this order, and the writes of those that commit; allocates
        slots, which :meth:`committed` or :meth:`abandoned` follows."""
        at, to, place = [], [], 0
        for row, (start, stop) in zip(rows, spans, strict=True):
            low, high = row.cache.writes(row)
            if high > low:
                to.append(self._slots(row, low, high))
                at.append(torch.arange(place + low - start, place + high - start))
            place += stop - start
        none = torch.zeros(0, dtype=torch.long)
        return Cached(
            self.store,
            tuple(row.cache.reads(row) for row in rows),
            torch.cat(at) if at else none,
            torch.cat(to) if to else none,
            steady=not to and all(row.opened for row in rows),
        )

    def _slots(self, row: RowState, low: int, high: int) -> Tensor:
        """Slots of the columns to write, int64 [E]: shared caches commit new pages and may overwrite those of the
        block, the others overwrite their pages."""
        if row.cache.shared:
            length = row.sampler.block_length
            self.commits.append(Commit(row, pages := [], block=high > row.begin))
            for count in page_sizes(row.begin - low, length):
                pages.append(self.pool.take(count))
            slots = torch.tensor([slot for page in pages for slot in page.slots], dtype=torch.long)
            return torch.cat([slots, self.pool.of_block(row.pages, length)]) if high > row.begin else slots
        if row.pages.columns < high:
            row.pages.add([self.pool.take(high - row.pages.columns)])
        return row.pages.slots[low:high]

    def committed(self) -> None:
        """The forward succeeded: commit its pages."""
        commits, self.commits = self.commits, []
        for commit in commits:
            row, pages = commit.row, commit.pages
            if pages:
                low = row.pages.columns
                tokens = row.canvas[low : low + sum(len(page.slots) for page in pages)].tolist()
                self.pool.commit(row.pages, pages, tokens, row.sampler.block_length)
            if commit.block:
                row.pages.block_begin = row.begin

    def abandoned(self) -> None:
        """The forward failed, or could not be packed: return its slots."""
        for commit in self.commits:
            self.pool.give_back(commit.pages)
        self.commits = []

    def release(self, rows: Sequence[RowState]) -> None:
        """Rows leave: their slots are free, or stay for rows with the same prefix."""
        for row in rows:
            self.pool.release(row.pages)
