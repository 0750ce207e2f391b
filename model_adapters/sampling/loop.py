"""The denoising loop: rows at different steps and blocks share a forward; a finished row's slot is refilled at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from dare_bench.diffusion.lockstep import Lockstep
from dare_bench.errors import MemoryLimitError
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.batch import Batch
from dare_bench.model_adapters.sampling.pages import Pages
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.types import LoopStats

FIRST_SLOTS = 1024


def out_of_memory(error: BaseException) -> bool:
    """Is this PyTorch's or Python's way of saying that memory ran out?"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


def denoise(
    network: Any,
    rows: Iterable[Row],
    *,
    mask_id: int,
    vocab: int,
    max_rows: int,
    device: torch.device,
    stats: LoopStats,
) -> Iterator[Row]:
    """Run rows to their end; yields each as it finishes.

    Rows are pulled from ``rows`` as slots fall free; all of them attend on one grid (block-causal rows of another block
    length, or another mask id, need a loop of their own). When memory runs out, half of the rows wait, the others go
    on, and ``stats.halvings`` records it; a canvas is only written after its forward succeeded, so nothing is lost.

    Raises:
        MemoryLimitError: one row alone does not fit.
        ModelOutputError: NaN or infinite logits.
    """
    # FSDP keeps what it gathers weights into for training, which takes no inference tensors.
    mode = torch.no_grad if isinstance(network, Lockstep) else torch.inference_mode
    return mode()(_turns)(network, rows, mask_id, vocab, max_rows, device, stats)


def _turns(
    network: Any,
    rows: Iterable[Row],
    mask_id: int,
    vocab: int,
    max_rows: int,
    device: torch.device,
    stats: LoopStats,
) -> Iterator[Row]:
    source, slots = iter(rows), max_rows
    pool: list[Row] = []
    held: list[Row] = []  # rows that wait a turn for a prefix that another row commits
    batch: Batch | None = None
    memory = _Memory(network, device)
    while True:
        waiting, held, before = held, [], len(pool)
        for row in waiting:
            (pool if memory.admit(row) else held).append(row)
        while len(pool) + len(held) < slots and (new := next(source, None)) is not None:
            if new.block < 0 and not new.next_block(vocab):  # a row in a block waited in the middle of its work
                yield new
            else:
                (pool if memory.admit(new) else held).append(new)
        if not pool:
            return
        if len(pool) > before and batch is not None:
            batch.sync()
            batch = None
        if batch is None:
            batch = Batch(pool, mask_id, device, memory.store, memory.pages)
        finished: list[int] | None = None
        try:
            finished = batch.turn(network)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            if len(pool) == 1:
                raise MemoryLimitError(
                    f"one row of {len(pool[0].canvas)} tokens does not fit into memory on {device}; "
                    "use a shorter gen_length, a smaller dtype or another device"
                ) from error
        if finished is None:  # outside the except: there the error would still hold the forward's tensors
            waiting, pool, slots = _halve(batch, memory, stats)
            batch, source, held = None, chain(waiting, held, source), []
            continue
        rows_done = sum(row.rule.forwards_per_step for row in pool)
        stats.count(rows_done, batch.tokens_done, slots * rows_done // len(pool))
        if not finished:
            continue
        batch.sync()
        ended = []
        for i in finished:
            if batch.rows[i].next_block(vocab):
                batch.enter(i)
            else:
                ended.append(batch.rows[i])
        if ended:
            gone = set(map(id, ended))
            pool, batch = [row for row in pool if id(row) not in gone], None
            for row in ended:
                memory.release(row)
            yield from ended


def new_cache(network: Any, device: torch.device) -> tuple[KVStore, Pages]:
    """An empty cache for a network's keys and values, and who owns its slots."""
    store = KVStore(network.arch, FIRST_SLOTS, device, next(network.parameters()).dtype)
    return store, Pages(FIRST_SLOTS, store.grow)


class _Memory:
    """The loop's cache: made when the first row wants one."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self.network, self.device = network, device
        self.store: KVStore | None = None
        self.pages: Pages | None = None

    def admit(self, row: Row) -> bool:
        """May the row join now? False: it waits for a prefix that another row is about to commit."""
        if row.rule.cache == "none":
            return True
        if self.pages is None:
            self.store, self.pages = new_cache(self.network, self.device)
        if row.rule.cache != "exact" or row.held.columns:
            return True
        length = row.rule.block_length
        return self.pages.admit(row.held, row.canvas[: row.begin].tolist(), length)

    def release(self, row: Row) -> None:
        if self.pages is not None:
            self.pages.release(row.held)


def _halve(batch: Batch, memory: _Memory, stats: LoopStats) -> tuple[list[Row], list[Row], int]:
    """Let half of the rows wait; returns (waiting, staying, slots). Their exact caches are made again."""
    batch.sync()
    rows = list(batch.rows)
    slots = max(1, len(rows) // 2)
    stats.halvings.append({"rows": len(rows), "now": slots})
    for row in rows[slots:]:
        if row.rule.cache == "exact":
            memory.release(row)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rows[slots:], rows[:slots], slots
