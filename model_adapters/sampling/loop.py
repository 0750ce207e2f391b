"""The denoising loop: rows at different steps and blocks share a forward; a finished row's slot is refilled at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import torch

from dare_bench.errors import MemoryLimitError
from dare_bench.model_adapters.sampling.batch import Batch
from dare_bench.model_adapters.sampling.rows import Row
from dare_bench.types import LoopStats


def out_of_memory(error: BaseException) -> bool:
    """Is this PyTorch's or Python's way of saying that memory ran out?"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)


@torch.no_grad()
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

    Rows are pulled from ``rows`` as slots fall free. When memory runs out, half of the rows wait, the others go on,
    and ``stats.halvings`` records it; a canvas is only written after its forward succeeded, so nothing is lost.

    Raises:
        MemoryLimitError: one row alone does not fit.
        ModelOutputError: NaN or infinite logits.
    """
    source, slots = iter(rows), max_rows
    pool: list[Row] = []
    batch: Batch | None = None
    while True:
        while len(pool) < slots and (row := next(source, None)) is not None:
            if row.block >= 0 or row.next_block(vocab):  # block >= 0: it waited in the middle of its work
                pool.append(row)
                batch = None
            else:
                yield row
        if not pool:
            return
        if batch is None:
            batch = Batch(pool, mask_id, device)
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
            waiting, batch, pool, slots = _halve(batch, stats)
            source = chain(waiting, source)
            continue
        stats.forwards += 1
        stats.row_forwards += len(pool)
        stats.slot_forwards += slots
        stats.tokens_processed += batch.full_plan.tokens
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
            yield from ended


def _halve(batch: Batch, stats: LoopStats) -> tuple[list[Row], None, list[Row], int]:
    """Let half of the rows wait; returns (waiting, no batch, staying, slots)."""
    batch.sync()
    rows = list(batch.rows)
    slots = max(1, len(rows) // 2)
    stats.halvings.append({"rows": len(rows), "now": slots})
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return rows[slots:], None, rows[:slots], slots
