"""Ownership of cache slots: pages of slots, reference counts, and prefixes shared between rows.

A committed page can be shared: its key is a hash of its tokens and of all tokens before it, so rows with a common
prompt prefix read the same slots. Pages without readers stay until their slots are needed, and are evicted in LRU
order. The tensors are in ``cache.py``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch
from torch import Tensor


@dataclass(eq=False)
class CachePage:
    """Slots of the columns of a block. ``key`` None: private."""

    slots: list[int]
    key: bytes | None = None
    readers: int = 1


@dataclass(eq=False)
class RowPages:
    """The pages that a row reads, and their slots by column: int64 [columns]."""

    pages: list[CachePage] = field(default_factory=list)
    slots: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    promised: tuple[bytes, ...] = ()
    """Keys that this row's next forward will commit; rows that need them wait."""
    block: CachePage | None = None
    """Slots of the block that is being decoded, where its keys and values are kept between forwards."""
    block_begin: int = -1
    """The first column of the block that they hold."""

    @property
    def columns(self) -> int:
        return len(self.slots)

    @property
    def block_slots(self) -> Tensor:
        assert self.block is not None
        return torch.tensor(self.block.slots)

    def add(self, pages: Sequence[CachePage]) -> None:
        self.pages.extend(pages)
        more = torch.tensor([s for page in pages for s in page.slots], dtype=torch.long)
        self.slots = torch.cat([self.slots, more])


def page_sizes(columns: int, length: int) -> list[int]:
    """The pages of so many columns that end with a block: only the first of them may be short."""
    short, whole = columns % length, columns // length
    return [*([short] if short else []), *[length] * whole]


def chain(tokens: Sequence[int], length: int, before: bytes = b"", short: int = 0) -> list[bytes]:
    """Keys of the full blocks of ``tokens``, behind a first one of ``short`` tokens (0: none): each a hash of its
    tokens and of the key before it."""
    keys = []
    for i in range(short and short - length, len(tokens) - length + 1, length):
        text = ",".join(map(str, tokens[max(i, 0) : i + length]))
        before = blake2b(before + f"{length}:{text}".encode(), digest_size=16).digest()
        keys.append(before)
    return keys


class PagePool:
    """The slots of one store. ``grow(total)`` enlarges the store; slot 0 is never allocated."""

    def __init__(self, slots: int, grow: Callable[[int], None]) -> None:
        self._grow, self._slots = grow, slots
        self._free = list(range(slots - 1, 0, -1))
        self._shared: dict[bytes, CachePage] = {}
        self._idle: OrderedDict[bytes, CachePage] = OrderedDict()
        self._promised: set[bytes] = set()
        self.hits = 0
        """Columns that were read instead of computed."""

    def take(self, count: int) -> CachePage:
        """A private page of ``count`` slots; evicts idle shared pages first, then grows the store."""
        while len(self._free) < count and self._idle:
            key, page = self._idle.popitem(last=False)
            del self._shared[key]
            self._free.extend(page.slots)
        if len(self._free) < count:
            total = max(2 * self._slots, self._slots + count)
            self._grow(total)
            self._free[:0] = range(total - 1, self._slots - 1, -1)
            self._slots = total
        return CachePage([self._free.pop() for _ in range(count)])

    def of_block(self, row_pages: RowPages, length: int) -> Tensor:
        """The slots for the row's block, int64 [length]; taken once for all blocks."""
        if row_pages.block is None:
            row_pages.block = self.take(length)
        return row_pages.block_slots

    def admit(self, row_pages: RowPages, prompt: Sequence[int], length: int) -> bool:
        """Give a new row the committed pages of its prompt. False: another row is about to commit the next page, so
        the row should wait for a forward."""
        keys = chain(prompt, length, short=len(prompt) % length)
        committed = next((i for i, key in enumerate(keys) if key not in self._shared), len(keys))
        if committed < len(keys) and keys[committed] in self._promised:
            return False
        shared_pages = [self._shared[key] for key in keys[:committed]]
        for page in shared_pages:
            assert page.key is not None
            self._idle.pop(page.key, None)
            page.readers += 1
        row_pages.add(shared_pages)
        self.hits += row_pages.columns
        row_pages.promised = tuple(keys[committed:])
        self._promised.update(row_pages.promised)
        return True

    def commit(self, row_pages: RowPages, pages: Sequence[CachePage], tokens: Sequence[int], length: int) -> None:
        """Add written pages to the row and make them shareable; ``tokens`` are their tokens."""
        before = (row_pages.pages[-1].key or b"") if row_pages.pages else b""
        keys = chain(tokens, length, before, len(tokens) % length)
        for page, key in zip(pages, keys, strict=True):
            page.key = key
            self._shared.setdefault(key, page)
        row_pages.add(pages)
        self.unpromise(row_pages)

    def unpromise(self, row_pages: RowPages) -> None:
        self._promised.difference_update(row_pages.promised)
        row_pages.promised = ()

    def release(self, row_pages: RowPages) -> None:
        """Release the row's pages; shared ones stay for others, and are evicted from the deepest on."""
        self.unpromise(row_pages)
        for page in reversed(row_pages.pages):
            page.readers -= 1
            if page.readers:
                continue
            if page.key is not None and self._shared.get(page.key) is page:
                self._idle[page.key] = page
            else:
                self._free.extend(page.slots)
        if row_pages.block is not None:
            self._free.extend(row_pages.block.slots)
        row_pages.pages, row_pages.slots = [], row_pages.slots[:0]
        row_pages.block, row_pages.block_begin = None, -1

    def give_back(self, pages: Sequence[CachePage]) -> None:
        """Return private pages that were never written."""
        for page in pages:
            self._free.extend(page.slots)
