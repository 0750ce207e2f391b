"""What one forward sees: each row's window of its canvas as one pack, with its reads and writes of the cache.

Shape letters: T packed tokens, R rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.pages import Block, Pages
from dare_bench.model_adapters.sampling.rows import Row


@dataclass(eq=False)
class Pack:
    """``index_T`` are the tokens' places among all canvases (None: all of them in order), ``row_T`` and ``column_T``
    say whose they are and where; ``fillable_T`` is True where a mask may be filled now, ``editable_T`` where a written
    token may be replaced, ``shift_T`` is 1 where the token before it is in the pack too. ``fresh``: good for one
    forward, because a row writes to the cache or is at the first step of a cached block."""

    plan: Plan
    index_T: Tensor | None
    row_T: Tensor
    column_T: Tensor
    fillable_T: Tensor
    editable_T: Tensor | None
    shift_T: Tensor
    fresh: bool
    commits: list[tuple[Row, list[Block]]] = field(default_factory=list)


class Packer:
    """Packs the rows of a batch, turn after turn. ``offsets`` are where their canvases begin."""

    def __init__(
        self,
        rows: Sequence[Row],
        offsets: Sequence[int],
        device: torch.device,
        store: KVStore | None,
        pages: Pages | None,
    ) -> None:
        self.rows, self.offsets, self.device = rows, offsets, device
        self.store, self.pages = store, pages
        self.total = sum(len(row.canvas) for row in rows)

    def pack(self) -> Pack:
        """The next forward's pack, rows sorted by window length so that equal ones attend together."""
        spans = [row.window() for row in self.rows]
        order = sorted(range(len(self.rows)), key=lambda i: (spans[i][1] - spans[i][0], len(self.rows[i].canvas)))
        lengths = [spans[i][1] - spans[i][0] for i in order]
        rule = self.rows[0].rule
        starts = tuple(spans[i][0] for i in order)
        cached, commits = self._cached(order, spans)
        plan = Plan(
            tuple(lengths),
            rule.block_length if rule.causal else None,
            starts=starts if any(starts) else None,
            cached=cached,
        )
        whole = sum(lengths) == self.total and order == sorted(order)
        column_T = plan.positions()
        row_T = torch.tensor(order).repeat_interleave(torch.tensor(lengths))
        offset_R = torch.tensor(self.offsets)
        fillable, editable = self._open(row_T, column_T)
        return Pack(
            plan,
            None if whole else (offset_R[row_T] + column_T).to(self.device),
            row_T.to(self.device),
            column_T.to(self.device),
            fillable.to(self.device),
            None if editable is None else editable.to(self.device),
            (column_T > torch.tensor(starts).repeat_interleave(torch.tensor(lengths))).long().to(self.device),
            fresh=cached is not None and not cached.steady,
            commits=commits,
        )

    def _open(self, row_T: Tensor, column_T: Tensor) -> tuple[Tensor, Tensor | None]:
        stop_R = torch.tensor([row.stop for row in self.rows])
        low_R = torch.tensor([row.begin if row.rule.causal else 0 for row in self.rows])
        fillable = (column_T < stop_R[row_T]) & (column_T >= low_R[row_T])
        edits = [row.rule.edit_threshold is not None for row in self.rows]
        if not any(edits):
            return fillable, None
        first_R = torch.tensor([max(row.begin, len(row.prompt)) for row in self.rows])
        return fillable, fillable & torch.tensor(edits)[row_T] & (column_T >= first_R[row_T])

    def _cached(
        self, order: Sequence[int], spans: Sequence[tuple[int, int]]
    ) -> tuple[Cached | None, list[tuple[Row, list[Block]]]]:
        """Reads of every row and writes of those that commit; fresh slots are taken here."""
        if self.pages is None or self.store is None or all(row.rule.cache == "none" for row in self.rows):
            return None, []
        at, to, commits, place = [], [], list[tuple[Row, list[Block]]](), 0
        for i in order:
            row, (start, stop) = self.rows[i], spans[i]
            low, high = row.to_cache()
            if high > low:
                slots, blocks = self._slots(row, low, high)
                at.append(torch.arange(place + low - start, place + high - start))
                to.append(slots)
                if blocks:
                    commits.append((row, blocks))
            place += stop - start
        none = torch.zeros(0, dtype=torch.long)
        cached = Cached(
            self.store,
            tuple(self.rows[i].reads() for i in order),
            (torch.cat(at) if at else none).to(self.device),
            (torch.cat(to) if to else none).to(self.device),
            steady=not to and all(row.step > 0 for row in self.rows),
        )
        return cached, commits

    def _slots(self, row: Row, low: int, high: int) -> tuple[Tensor, list[Block]]:
        """Slots of the columns to write. Exact caches commit new blocks; approximate ones overwrite their own."""
        assert self.pages is not None
        if row.rule.cache == "exact":
            length = row.rule.block_length
            blocks = [self.pages.take(length) for _ in range(low, high, length)]
            return torch.tensor([s for block in blocks for s in block.slots]), blocks
        if row.held.columns < high:
            row.held.add([self.pages.take(high - row.held.columns)])
        return row.held.slots[low:high], []

    def committed(self, pack: Pack) -> None:
        """The forward succeeded: what it wrote is now in the cache."""
        assert self.pages is not None or not pack.commits
        for row, blocks in pack.commits:
            low = row.held.columns
            count = sum(len(block.slots) for block in blocks)
            assert self.pages is not None
            self.pages.commit(row.held, blocks, row.canvas[low : low + count].tolist(), row.rule.block_length)
        pack.commits = []

    def abandoned(self, pack: Pack) -> None:
        """The forward failed: its slots go back."""
        for _, blocks in pack.commits:
            assert self.pages is not None
            self.pages.give_back(blocks)
        pack.commits = []
