"""Keys and values of clean prefixes, for the families whose blocks attend only to clean tokens before them.

They are computed once and read by every masked block of a pair, by the choices of a question, and by later requests
with the same beginning (``backbone/pages.py`` shares full blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.model_adapters.backbone.pages import CachePage
from dare_bench.model_adapters.sampling.row_cache import RowCache
from dare_bench.model_adapters.scoring.pairs import ScoredPair
from dare_bench.types import LoopStats


class CleanPrefixes:
    """The cache of one pass over requests."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self.network, self.device = network, device
        cache = RowCache(network, device)
        self.store, self.pool = cache.store, cache.pool

    def compute(self, pairs: Sequence[ScoredPair], max_rows: int | None, budget: int, stats: LoopStats) -> None:
        """Compute the clean columns of the pairs that are missing; each pair holds its blocks until ``release``.

        A pair whose next block another one is about to compute waits for it, so nothing is computed twice.
        """
        waiting = [pair for pair in pairs if pair.clean]
        while waiting:
            later, ready, tokens = list[ScoredPair](), list[ScoredPair](), 0
            length = waiting[0].block_length
            assert length is not None
            for pair in waiting:
                full = len(ready) >= (max_rows or len(waiting)) or (ready and tokens + pair.clean > budget)
                clean = pair.whole[: pair.clean]
                if full or pair.block_length != length or not self.pool.admit(pair.pages, clean, length):
                    later.append(pair)
                elif pair.pages.columns < pair.clean:
                    ready.append(pair)
                    tokens += pair.clean - pair.pages.columns
            if ready:
                self._compute(ready, length, stats)
            waiting = later

    @torch.no_grad()
    def _compute(self, pairs: Sequence[ScoredPair], length: int, stats: LoopStats) -> None:
        """One forward over the missing columns, which stores their keys and values. Where clean tokens attend causally,
        they do so as blocks of one."""
        pairs = sorted(pairs, key=lambda pair: (pair.clean - pair.pages.columns, pair.pages.columns))
        new_pages: list[list[CachePage]] = [
            [self.pool.take(length) for _ in range(pair.pages.columns, pair.clean, length)] for pair in pairs
        ]
        tokens = torch.tensor([t for pair in pairs for t in pair.whole[pair.pages.columns : pair.clean]])
        plan = Plan(
            tuple(pair.clean - pair.pages.columns for pair in pairs),
            1 if self.network.arch.causal_prefix else length,
            starts=tuple(pair.pages.columns for pair in pairs),
            cached=Cached(
                self.store,
                tuple(pair.pages.slots for pair in pairs),
                torch.arange(len(tokens), device=self.device),
                torch.tensor([s for pages in new_pages for page in pages for s in page.slots], device=self.device),
            ),
        )
        first = torch.zeros(1, dtype=torch.long, device=self.device)  # not used: the smallest number of logits
        self.network(tokens.to(self.device), plan=plan, logits_at=first)
        for pair, pages in zip(pairs, new_pages, strict=True):
            self.pool.commit(pair.pages, pages, pair.whole[pair.pages.columns : pair.clean], length)
        stats.count(len(pairs), len(tokens))

    def release(self, pairs: Sequence[ScoredPair]) -> None:
        """Release scored pairs; their blocks remain available to others until their slots are needed."""
        for pair in pairs:
            self.pool.release(pair.pages)
