"""The denoising loop: rows at different steps and blocks share forwards; the slot of a finished row is refilled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any, Protocol

import torch

from dare_bench.diffusion.lockstep import Lockstep
from dare_bench.errors import MemoryLimitError
from dare_bench.model_adapters.batches import SHORTER, out_of_memory
from dare_bench.model_adapters.sampling.batch import ActiveRows
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.model_adapters.sampling.decide import joined
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.drafts import affordable
from dare_bench.model_adapters.sampling.records import Decision, Positions
from dare_bench.model_adapters.sampling.row_cache import RowCache
from dare_bench.model_adapters.sampling.speculation import advance
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.types import LoopStats

Result = tuple[Positions, Decision]


class Compiled(Protocol):
    """Computes steps of few shapes as compiled graphs (``model_adapters/frames.py``)."""

    sizes: Sizes

    def step(self, step: Callable[[DeviceState, Any], Result], state: DeviceState, network: Any) -> Result:
        """As ``step(state, network)``."""

    def clear(self) -> bool:
        """Free what compiled steps hold; was there anything?"""


def denoise(
    network: Any,
    rows: Iterable[RowState],
    *,
    mask_id: int,
    vocab: int,
    max_rows: int,
    device: torch.device,
    stats: LoopStats,
    frames: Compiled | None = None,
) -> Iterator[RowState]:
    """Run rows to their end; yields each as it finishes.

    Rows are pulled from ``rows`` as slots become free; they must have the same mask id, and block-causal rows the same
    block length. When memory runs out, half of the rows wait, and ``stats.halvings`` records it; a canvas is written
    only after its forward succeeded, so nothing is lost. ``frames``: of the network, if its forwards are compiled.

    Raises:
        MemoryLimitError: one row alone does not fit.
        ModelOutputError: NaN or infinite logits.
    """
    # FSDP keeps the buffers of gathered weights for training, which cannot use inference tensors.
    mode = torch.no_grad if isinstance(network, Lockstep) else torch.inference_mode
    sizes = Sizes() if frames is None else frames.sizes
    return mode()(_Loop(network, iter(rows), mask_id, vocab, max_rows, device, stats, frames, sizes).run)()


def step(device: DeviceState, network: Any) -> Result:
    """One forward of all rows, and what it writes. With static shapes this waits for nothing, and takes and changes
    tensors of ``device`` alone. Nothing is written unless forward and decision succeed."""
    logits_NV, positions = device.forward(network)
    groups = device.groups(logits_NV, positions)
    offers = [group.propose() for group in groups]
    decisions = [group.select(offer) for group, offer in zip(groups, offers, strict=True)]
    decision = joined(groups, decisions, positions)
    done_R = device.finished(positions, decision)
    for observer in device.observers:
        observer.observe(groups, offers, decisions)
    for offer in offers:
        device.finite &= offer.finite
    device.write(positions, decision)
    device.count(positions, done_R)
    if device.drafts is not None:
        advance(device.drafts, device, logits_NV)
    return positions, decision


@dataclass
class _Loop:
    """``active`` rows share forwards; ``waiting`` rows wait for a prefix that another row commits."""

    network: Any
    source: Iterator[RowState]
    mask_id: int
    vocab: int
    slots: int
    device: torch.device
    stats: LoopStats
    frames: Compiled | None
    sizes: Sizes
    active: list[RowState] = field(default_factory=list)
    waiting: list[RowState] = field(default_factory=list)
    batch: ActiveRows | None = None
    cache: RowCache | None = None
    drafting: bool = True

    def run(self) -> Iterator[RowState]:
        while True:
            yield from self.fill()
            if not self.active:
                return
            batch = self.batch = self.batch or self.gathered()
            finished = self.forward(batch)
            if finished is None:
                self.halve(batch)
            elif finished or batch.ended():
                yield from self.refill(batch, finished)

    def forward(self, batch: ActiveRows) -> list[int] | None:
        """Pack the rows, decide, and look which blocks are finished. None: memory ran out."""
        try:
            batch.pack()
            run = step if self.frames is None else partial(self.frames.step, step)
            positions, decision = run(batch.device, self.network)
        except BaseException as error:
            batch.abandon()
            if not out_of_memory(error):
                raise
            if (self.frames is not None and self.frames.clear()) or len(self.active) > 1 or batch.states > 1:
                return None
            row = f"one row of {len(self.active[0].canvas)} tokens does not fit into memory on {self.device}"
            raise MemoryLimitError(f"{row}{SHORTER}") from error
        batch.observe(positions, decision)  # from here on the forward is made, and is not made again
        finished = batch.look()
        forwards = sum(row.sampler.passes_per_forward for row in self.active)
        self.stats.count(forwards, batch.tokens_done, self.slots * forwards // len(self.active))
        return finished

    def gathered(self) -> ActiveRows:
        """The active rows, with their tensors on the device."""
        backend = getattr(self.network, "attention", None)  # a wrapped network may have none
        static = backend is not None and backend.static_shapes
        drafts = affordable(self.active, self.device) if self.drafting else 0
        return ActiveRows(self.active, self.mask_id, self.device, self.cache, self.sizes if static else None, drafts)

    def fill(self) -> Iterator[RowState]:
        """Fill free slots; yields rows without anything to decode."""
        waiting, self.waiting, before = self.waiting, [], len(self.active)
        for row in waiting:
            self.admit(row)
        while len(self.active) + len(self.waiting) < self.slots and (new := next(self.source, None)) is not None:
            if new.block < 0 and not new.next_block(self.vocab):  # a row inside a block was evicted by `halve`
                yield new
            else:
                self.admit(new)
        if len(self.active) > before and self.batch is not None:
            self.batch.sync()
            self.batch = None

    def admit(self, row: RowState) -> None:
        """Let the row join, or wait for a prefix that another row is about to commit."""
        ready = True
        if row.cache.used:
            self.cache = self.cache or RowCache(self.network, self.device)
            ready = self.cache.admit(row)
        (self.active if ready else self.waiting).append(row)

    def refill(self, batch: ActiveRows, finished: list[int]) -> Iterator[RowState]:
        """Move rows with a finished block into their next one; yields rows that are finished or end here, whose slots
        become free."""
        batch.sync()
        moved = [i for i in finished if batch.rows[i].next_block(self.vocab)]
        if any(len(row.canvas) != length for row, length in zip(batch.rows, batch.lengths, strict=True)):
            self.batch = None
        elif moved:
            batch.enter_blocks(moved)
        ended = [batch.rows[i] for i in finished if i not in moved]
        for row in [batch.rows[i] for i in batch.ended()]:
            if row not in ended:
                row.cut = True
                ended.append(row)
        if ended:
            self.active, self.batch = [row for row in self.active if row not in ended], None
            if self.cache is not None:
                self.cache.release(ended)
            yield from ended

    def halve(self, batch: ActiveRows) -> None:
        """After memory ran out: rows have no drafts any more, or half of them wait in the source again. Their shared
        caches are recomputed, unless tokens were taken out of their blocks, whose borders the canvas no longer tells.
        """
        batch.sync()
        self.sizes.clear()
        if batch.states > 1:  # without drafts there may be enough
            self.drafting, self.batch = False, None
            return
        count, self.slots = len(batch.rows), max(1, len(batch.rows) // 2)
        self.active, parked = batch.rows[: self.slots], batch.rows[self.slots :]
        self.stats.halvings.append({"rows": count, "now": self.slots})
        if self.cache is not None:
            self.cache.release([row for row in parked if row.cache.shared and not row.dropped])
        torch.cuda.empty_cache()  # nothing without CUDA
        self.source, self.waiting, self.batch = chain(parked, self.waiting, self.source), [], None
