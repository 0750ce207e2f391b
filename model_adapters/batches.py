"""Batches of as many items as fit into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch

from dare_bench.errors import MemoryLimitError
from dare_bench.types import LoopStats

Item = TypeVar("Item")
SHORTER = "; use a shorter gen_length, a smaller dtype or another device"
"""What to do where one row does not fit into memory."""


class Batches:
    """Splits work into batches of at most ``rows`` items (None: any number), half as many each time memory runs out.

    ``advice`` ends the message where one item does not fit.
    """

    def __init__(self, rows: int | None, stats: LoopStats, device: torch.device, advice: str = "") -> None:
        self.rows, self.stats, self.device, self.advice = rows, stats, device, advice

    def compute(
        self,
        items: Sequence[Item],
        forward: Callable[[Sequence[Item]], None],
        fits: Callable[[Sequence[Item]], int] = len,
        name: Callable[[Item], str] = lambda item: "one row",
    ) -> Iterator[Sequence[Item]]:
        """Call ``forward`` with one batch after another; yields each when it is done.

        Args:
            fits: how many of the given items, from the first on, one batch may hold.
            name: an item in words.

        Raises:
            MemoryLimitError: one item alone does not fit into memory.
        """
        start = 0
        while start < len(items):
            batch = items[start:][: self.rows]
            batch = batch[: max(1, fits(batch))]
            failed: BaseException | None = None
            try:
                forward(batch)
            except (RuntimeError, MemoryError) as error:
                if not out_of_memory(error):
                    raise
                failed = error if len(batch) == 1 else None
            else:
                yield batch
                start += len(batch)
                continue
            if failed is not None:
                problem = f"{name(batch[0])} does not fit into memory on {self.device}{self.advice}"
                raise MemoryLimitError(problem) from failed
            self.rows = len(batch) // 2
            self.stats.halvings.append({"rows": len(batch), "now": self.rows})
            if torch.cuda.is_available():
                torch.cuda.empty_cache()


def out_of_memory(error: BaseException) -> bool:
    """Does the error mean that memory ran out?"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text)
