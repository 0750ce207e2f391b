"""Attention plans: which tokens of a pack see which.

Tokens of all rows stand one behind another, [T]; no row sees another. Rows of equal length that stand next to each
other form a group, which attends as one dense [R, L] batch, so a pack sorted by length costs as many attention calls
as it has distinct lengths.

Shape letters: T packed tokens, R rows of a group, L their length, Q query positions a row, N selected tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby

import torch
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """``rows`` rows of ``length`` tokens each, starting at packed index ``start``."""

    start: int
    rows: int
    length: int

    @property
    def stop(self) -> int:
        return self.start + self.rows * self.length


@dataclass(frozen=True)
class Plan:
    """How a pack attends. ``block_length`` None: bidirectional inside a row; otherwise block-causal, the grid counted
    from each row's first token: a query sees the keys of its own and of earlier blocks."""

    lengths: tuple[int, ...]
    block_length: int | None = None
    groups: tuple[Group, ...] = field(init=False)

    def __post_init__(self) -> None:
        groups, start = [], 0
        for length, same in groupby(self.lengths):
            rows = len(list(same))
            groups.append(Group(start, rows, length))
            start += rows * length
        object.__setattr__(self, "groups", tuple(groups))

    @classmethod
    def rows(cls, count: int, length: int, block_length: int | None = None) -> Plan:
        """``count`` rows of one length."""
        return cls((length,) * count, block_length)

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """Positions 0..L-1 of each row, packed: int64 [T]."""
        return torch.cat([torch.arange(g.length, device=device).repeat(g.rows) for g in self.groups])

    def mask(self, length: int, device: torch.device) -> Tensor | None:
        """Boolean [L, L], True where a query may see a key; None when it may see all."""
        if self.block_length is None:
            return None
        block = torch.arange(length, device=device) // self.block_length
        return block[:, None] >= block[None, :]


@dataclass(frozen=True)
class GroupQueries:
    """The selected tokens of one group, padded to equal counts a row.

    ``index_RQ`` points into the N selected tokens, ``keep_RQ`` is False on padding, ``column_RQ`` is the position
    inside the row.
    """

    index_RQ: Tensor
    keep_RQ: Tensor
    column_RQ: Tensor


def select_queries(plan: Plan, logits_at: Tensor) -> list[GroupQueries | None]:
    """Split sorted packed indices [N] by group; None for a group without any. Works without a loop over rows."""
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
