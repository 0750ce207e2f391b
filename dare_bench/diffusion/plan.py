"""Attention plans: which tokens of a pack attend to which, and to which cached keys and values.

The rows of a pack are concatenated, [T]; no row attends to another. Adjacent rows of equal length form a group, which
attends as one dense [R, L] batch, so a pack sorted by length takes as many attention calls as it has distinct lengths.
A row may be a window of a longer canvas: its tokens then also attend to the cached keys and values named by the plan.

Shape letters: T packed tokens, R rows of a group, L their length, E cached keys, Q query positions a row, N selected.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

import torch
from torch import Tensor

from dare_bench.diffusion.sequence_parallel import SequenceGroup


class Store(Protocol):
    """Keys and values of committed tokens by slot, a tensor [S, K, C] a layer each (the backbone's ``KVStore``)."""

    keys: list[Tensor]
    values: list[Tensor]

    def write(self, layer: int, at_n: Tensor, to_n: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> None:
        """Store the keys and values of the packed tokens ``at_n`` in the slots ``to_n``."""
        ...


@dataclass(frozen=True)
class Group:
    """``rows`` rows of ``length`` tokens each, starting at packed index ``start``; ``row`` numbers the first one."""

    start: int
    rows: int
    length: int
    row: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length


@dataclass(frozen=True)
class Cached:
    """What each row reads from the store, and which tokens are written to it.

    ``slots[r]`` are the slots that row r reads (int64, any number); ``write_at`` are packed indices, ``write_to`` the
    slots they go to. A slot is never read and written in one forward. ``steady``: the plan serves several forwards
    during which its slots do not change, so they are gathered once (without gradients only).
    """

    store: Store
    slots: tuple[Tensor, ...]
    write_at: Tensor
    write_to: Tensor
    steady: bool = False


@dataclass(frozen=True, eq=False)
class View:
    """A group for attention: the slots ``reads_RE`` (None: nothing cached) and a boolean ``mask`` [R or 1, 1, L, E +
    L], True where a query may attend to a key (None: everywhere). Cached keys come first. ``gathered`` holds the keys
    and values of a steady plan by layer, [R, E + L, K, C]."""

    group: Group
    reads_RE: Tensor | None
    mask: Tensor | None
    gathered: dict[str, Tensor] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Plan:
    """How a pack attends.

    ``block_length`` None: bidirectional inside a row; otherwise block-causal on a grid from column 0: a query attends
    to its own block and to earlier ones. ``copies`` 2: each row is [noisy | clean], the two halves at the same
    positions: noisy block b attends to itself and to the clean blocks before it, clean block b to the clean ones up to
    b (block diffusion training, arXiv 2503.09573). ``starts`` are the columns of the rows' first tokens, 0 unless
    given; block-causal rows start on the grid. ``sequence``: the ranks that compute the pack together, without a cache.
    """

    lengths: tuple[int, ...]
    block_length: int | None = None
    copies: int = 1
    starts: tuple[int, ...] | None = None
    cached: Cached | None = field(default=None, compare=False)
    sequence: SequenceGroup | None = field(default=None, compare=False)
    groups: tuple[Group, ...] = field(init=False)
    _views: dict[torch.device, list[View]] = field(init=False, compare=False, repr=False, default_factory=dict)
    _blocks: dict[tuple[int, torch.device], Tensor] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.sequence is not None and self.cached is not None:
            raise ValueError("a plan with a sequence-parallel group cannot read or write a cache; give one of them")
        groups, start, row = [], 0, 0
        for length, same in groupby(self.lengths):
            rows = len(list(same))
            groups.append(Group(start, rows, length, row))
            start, row = start + rows * length, row + rows
        object.__setattr__(self, "groups", tuple(groups))

    @classmethod
    def rows(cls, count: int, length: int, block_length: int | None = None) -> Plan:
        """``count`` rows of one length."""
        return cls((length,) * count, block_length)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """Each row's own positions, packed: int64 [T]."""
        parts = [torch.arange(g.length // self.copies, device=device).repeat(g.rows * self.copies) for g in self.groups]
        positions = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.starts is None:
            return positions
        length_R = torch.tensor(self.lengths, device=device)
        return positions + torch.tensor(self.starts, device=device).repeat_interleave(length_R)

    def blocks(self, length: int, device: torch.device) -> Tensor:
        """The number of each token's block of ``length`` columns; those of rows and copies are different: int64 [T],
        computed once for all layers."""
        if (length, device) not in self._blocks:
            half_R = torch.tensor(self.lengths) // self.copies
            part_T = torch.arange(len(half_R) * self.copies).repeat_interleave(half_R.repeat_interleave(self.copies))
            pair_T2 = torch.stack([part_T, self.positions() // length], dim=1)
            self._blocks[length, device] = pair_T2.unique(dim=0, return_inverse=True)[1].to(device)
        return self._blocks[length, device]

    def views(self, device: torch.device) -> list[View]:
        """The groups with their masks and reads, computed once for all layers."""
        if device not in self._views:
            self._views[device] = [self._view(g, device) for g in self.groups]
        return self._views[device]

    def _view(self, g: Group, device: torch.device) -> View:
        own = self._own_mask(g.length, device)
        if self.cached is None:
            return View(g, None, own)
        slots = self.cached.slots[g.row : g.row + g.rows]
        width = max(len(s) for s in slots)
        if width == 0:
            return View(g, None, own)
        even = all(len(s) == width for s in slots)
        table = torch.stack(slots) if even else torch.nn.utils.rnn.pad_sequence(list(slots), batch_first=True)
        reads = table.to(device)
        gathered: dict[str, Tensor] | None = {} if self.cached.steady else None
        if even and own is None:
            return View(g, reads, None, gathered)
        count_R = torch.tensor([len(s) for s in slots], device=device)
        seen = (torch.arange(width, device=device)[None] < count_R[:, None])[:, None, None]
        seen = seen.expand(g.rows, 1, g.length, width)
        if own is None:
            own = torch.ones((1, 1, g.length, g.length), dtype=torch.bool, device=device)
        return View(g, reads, torch.cat([seen, own.expand(g.rows, 1, g.length, g.length)], dim=-1), gathered)

    def _own_mask(self, length: int, device: torch.device) -> Tensor | None:
        """Boolean [1, 1, L, L] among the tokens of a row; None if all attend to all."""
        if self.block_length is None or (self.copies == 1 and length <= self.block_length):
            return None
        n = length // self.copies
        block = torch.arange(n, device=device) // self.block_length
        clean = block[:, None] >= block[None, :]
        if self.copies == 1:
            return clean[None, None]
        noisy, past = block[:, None] == block[None, :], block[:, None] > block[None, :]
        top, bottom = torch.cat([noisy, past], dim=1), torch.cat([torch.zeros_like(clean), clean], dim=1)
        return torch.cat([top, bottom])[None, None]


@dataclass(frozen=True)
class GroupQueries:
    """The selected tokens of one group, padded to equal counts a row.

    ``index_RQ`` points into the N selected tokens, ``keep_RQ`` is False on padding, ``column_RQ`` counts in the row.
    """

    index_RQ: Tensor
    keep_RQ: Tensor
    column_RQ: Tensor

    def to(self, device: torch.device) -> GroupQueries:
        """A copy on a device (accelerate calls this where layers are on several)."""
        return GroupQueries(self.index_RQ.to(device), self.keep_RQ.to(device), self.column_RQ.to(device))


def select_queries(plan: Plan, logits_at: Tensor) -> list[GroupQueries | None]:
    """Split sorted packed indices [N] by group; None for a group without any."""
    bounds = torch.tensor([g.start for g in plan.groups] + [plan.tokens], device=logits_at.device)
    cuts = torch.searchsorted(logits_at, bounds).tolist()
    selected: list[GroupQueries | None] = []
    for group, low, high in zip(plan.groups, cuts[:-1], cuts[1:], strict=True):
        if low == high:
            selected.append(None)
            continue
        local = logits_at[low:high] - group.start
        row, column = local // group.length, local % group.length
        counts = torch.bincount(row, minlength=group.rows)
        first = counts.cumsum(0) - counts
        rank = torch.arange(high - low, device=row.device) - first[row]
        width = int(counts.max())
        index = torch.full((group.rows, width), low, device=row.device)
        keep = torch.zeros((group.rows, width), dtype=torch.bool, device=row.device)
        columns = torch.zeros((group.rows, width), dtype=torch.long, device=row.device)
        index[row, rank] = torch.arange(low, high, device=row.device)
        keep[row, rank] = True
        columns[row, rank] = column
        selected.append(GroupQueries(index, keep, columns))
    return selected
