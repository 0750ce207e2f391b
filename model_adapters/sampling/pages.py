"""Who owns which cache slots: blocks of slots, counted references, and prefixes shared between rows.

A block is shareable once it is committed: its key names its own tokens and all before it, so a row whose prompt begins
the same way reads the same slots and computes nothing again. Blocks that nobody reads any more stay until their slots
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
class Block:
    """Slots of consecutive columns. ``key`` None: private."""

    slots: list[int]
    key: bytes | None = None
    readers: int = 1


@dataclass(eq=False)
class Held:
    """The blocks that one row holds, and their slots by column: int64 [columns]."""

    blocks: list[Block] = field(default_factory=list)
    slots: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    promised: tuple[bytes, ...] = ()
    """Keys that this row's next forward will commit; rows that want them wait for it."""

    @property
    def columns(self) -> int:
        return len(self.slots)

    def add(self, blocks: Sequence[Block]) -> None:
        self.blocks.extend(blocks)
        more = torch.tensor([s for b in blocks for s in b.slots], dtype=torch.long)
        self.slots = torch.cat([self.slots, more])


def chain(tokens: Sequence[int], length: int, before: bytes = b"") -> list[bytes]:
    """Keys of the full blocks of ``tokens``: each a hash of its tokens and of the key before it."""
    keys = []
    for i in range(0, len(tokens) - length + 1, length):
        text = ",".join(map(str, tokens[i : i + length]))
        before = blake2b(before + f"{length}:{text}".encode(), digest_size=16).digest()
        keys.append(before)
    return keys


class Pages:
    """The slots of one store. ``grow(total)`` makes the store larger; slot 0 is never given away."""

    def __init__(self, slots: int, grow: Callable[[int], None]) -> None:
        self._grow, self._slots = grow, slots
        self._free = list(range(slots - 1, 0, -1))
        self._shared: dict[bytes, Block] = {}
        self._idle: OrderedDict[bytes, Block] = OrderedDict()
        self._promised: set[bytes] = set()
        self.hits = 0
        """Columns that were read instead of computed."""

    def take(self, count: int) -> Block:
        """A private block of ``count`` slots; idle shared blocks go first, then the store grows."""
        while len(self._free) < count and self._idle:
            key, block = self._idle.popitem(last=False)
            del self._shared[key]
            self._free.extend(block.slots)
        if len(self._free) < count:
            total = max(2 * self._slots, self._slots + count)
            self._grow(total)
            self._free[:0] = range(total - 1, self._slots - 1, -1)
            self._slots = total
        return Block([self._free.pop() for _ in range(count)])

    def admit(self, held: Held, prompt: Sequence[int], length: int) -> bool:
        """Let a new row read the committed blocks of its prompt. False: another row is about to commit the next one,
        so it is worth waiting a turn."""
        keys = chain(prompt, length)
        known = next((i for i, key in enumerate(keys) if key not in self._shared), len(keys))
        if known < len(keys) and keys[known] in self._promised:
            return False
        found = [self._shared[key] for key in keys[:known]]
        for block in found:
            assert block.key is not None
            self._idle.pop(block.key, None)
            block.readers += 1
        held.add(found)
        self.hits += held.columns
        held.promised = tuple(keys[known:])
        self._promised.update(held.promised)
        return True

    def commit(self, held: Held, blocks: Sequence[Block], tokens: Sequence[int], length: int) -> None:
        """Blocks whose keys and values are written now belong to the row, and may be shared. ``tokens`` are theirs."""
        keys = chain(tokens, length, (held.blocks[-1].key or b"") if held.blocks else b"")
        for block, key in zip(blocks, keys, strict=True):
            block.key = key
            self._shared.setdefault(key, block)
        held.add(blocks)
        self.unpromise(held)

    def unpromise(self, held: Held) -> None:
        self._promised.difference_update(held.promised)
        held.promised = ()

    def release(self, held: Held) -> None:
        """The row is done with its blocks; shared ones stay for others, and go from the deepest on."""
        self.unpromise(held)
        for block in reversed(held.blocks):
            block.readers -= 1
            if block.readers:
                continue
            if block.key is not None and self._shared.get(block.key) is block:
                self._idle[block.key] = block
            else:
                self._free.extend(block.slots)
        held.blocks, held.slots = [], held.slots[:0]

    def give_back(self, blocks: Sequence[Block]) -> None:
        """Private blocks that were never written."""
        for block in blocks:
            self._free.extend(block.slots)
