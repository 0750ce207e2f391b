"""Who owns which cache slots: pages of slots, counted references, and prefixes shared between rows.

A page is shareable once it is committed: its key names its own tokens and all before it, so a row whose prompt begins
the same way reads the same slots and computes nothing again. Pages that nobody reads any more stay until their slots
are wanted, the longest unused first. Nothing here touches a tensor of the model; see ``backbone/cache.py`` for those.
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
    """Keys that this row's next forward will commit; rows that want them wait for it."""

    @property
    def columns(self) -> int:
        return len(self.slots)

    def add(self, pages: Sequence[CachePage]) -> None:
        self.pages.extend(pages)
        more = torch.tensor([s for page in pages for s in page.slots], dtype=torch.long)
        self.slots = torch.cat([self.slots, more])


def chain(tokens: Sequence[int], length: int, before: bytes = b"") -> list[bytes]:
    """Keys of the full blocks of ``tokens``: each a hash of its tokens and of the key before it."""
    keys = []
    for i in range(0, len(tokens) - length + 1, length):
        text = ",".join(map(str, tokens[i : i + length]))
        before = blake2b(before + f"{length}:{text}".encode(), digest_size=16).digest()
        keys.append(before)
    return keys


class PagePool:
    """The slots of one store. ``grow(total)`` makes the store larger; slot 0 is never given away."""

    def __init__(self, slots: int, grow: Callable[[int], None]) -> None:
        self._grow, self._slots = grow, slots
        self._free = list(range(slots - 1, 0, -1))
        self._shared: dict[bytes, CachePage] = {}
        self._idle: OrderedDict[bytes, CachePage] = OrderedDict()
        self._promised: set[bytes] = set()
        self.hits = 0
        """Columns that were read instead of computed."""

    def take(self, count: int) -> CachePage:
        """A private page of ``count`` slots; idle shared pages go first, then the store grows."""
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

    def admit(self, row_pages: RowPages, prompt: Sequence[int], length: int) -> bool:
        """Let a new row read the committed pages of its prompt. False: another row is about to commit the next one,
        so it is worth waiting a turn."""
        keys = chain(prompt, length)
        known = next((i for i, key in enumerate(keys) if key not in self._shared), len(keys))
        if known < len(keys) and keys[known] in self._promised:
            return False
        shared_pages = [self._shared[key] for key in keys[:known]]
        for page in shared_pages:
            assert page.key is not None
            self._idle.pop(page.key, None)
            page.readers += 1
        row_pages.add(shared_pages)
        self.hits += row_pages.columns
        row_pages.promised = tuple(keys[known:])
        self._promised.update(row_pages.promised)
        return True

    def commit(self, row_pages: RowPages, pages: Sequence[CachePage], tokens: Sequence[int], length: int) -> None:
        """Pages whose keys and values are written now belong to the row, and may be shared. ``tokens`` are theirs."""
        keys = chain(tokens, length, (row_pages.pages[-1].key or b"") if row_pages.pages else b"")
        for page, key in zip(pages, keys, strict=True):
            page.key = key
            self._shared.setdefault(key, page)
        row_pages.add(pages)
        self.unpromise(row_pages)

    def unpromise(self, row_pages: RowPages) -> None:
        self._promised.difference_update(row_pages.promised)
        row_pages.promised = ()

    def release(self, row_pages: RowPages) -> None:
        """The row is done with its pages; shared ones stay for others, and go from the deepest on."""
        self.unpromise(row_pages)
        for page in reversed(row_pages.pages):
            page.readers -= 1
            if page.readers:
                continue
            if page.key is not None and self._shared.get(page.key) is page:
                self._idle[page.key] = page
            else:
                self._free.extend(page.slots)
        row_pages.pages, row_pages.slots = [], row_pages.slots[:0]

    def give_back(self, pages: Sequence[CachePage]) -> None:
        """Private pages that were never written."""
        for page in pages:
            self._free.extend(page.slots)
