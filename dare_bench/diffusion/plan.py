"""Attention plans: which tokens of a pack attend to which, and to which cached keys and values.

The rows of a pack are concatenated, [T]; no row attends to another. Adjacent rows of equal length form a group, which
attends as one dense [R, L] batch, so a pack sorted by length takes as many attention calls as it has distinct lengths.
A row may be a window of a longer canvas: its tokens then also attend to the cached keys and values named by the plan.

Shape letters: T packed tokens, R rows of a group, L their length, E cached keys, Q query positions a row, N selected.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from dare_bench.diffusion.masks import Padding, block_mask, clean_mask, phased_mask
from dare_bench.diffusion.sequence_parallel import SequenceGroup

Value = TypeVar("Value")


class Store(Protocol):
    """Keys and values of committed tokens by slot, a tensor [S, K, C] a layer each (the backbone's ``KVStore``)."""

    keys: list[Tensor]
    values: list[Tensor]

    @property
    def slots(self) -> int:
        """S."""
        ...

    def write(self, layer: int, at_n: Tensor, to_n: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> None:
        """Store the keys and values of the packed tokens ``at_n`` in the slots ``to_n``."""
        ...

    def with_own(self, layer: int, k_TKC: Tensor, v_TKC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots, followed by those of the pack: each [S + T, K, C]. No slot is copied; they are
        valid until the next call."""
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
    and values of a steady plan by layer, [R, E + L, K, C], with the view of it that the rows' own are written to."""

    group: Group
    reads_RE: Tensor | None
    mask: Tensor | None
    gathered: dict[str, tuple[Tensor, Tensor]] | None = field(default=None, repr=False)
    _repeated: dict[int, Tensor] = field(init=False, repr=False, default_factory=dict)

    def repeated_mask(self, times: int) -> Tensor | None:
        """The mask for queries that stand there several times, [R or 1, 1, times L, E + L]; computed once for all
        layers."""
        if self.mask is None or times == 1:
            return self.mask
        if times not in self._repeated:
            self._repeated[times] = self.mask.repeat(1, 1, times, 1)
        return self._repeated[times]


@dataclass(frozen=True)
class Filled:
    """Sizes to which a plan's padded view is filled, so that many plans share a shape: rows, the length of a row, and
    the cached keys of a row."""

    rows: int
    length: int
    cached: int


@dataclass(frozen=True, eq=False)
class PaddedView:
    """A pack as one group of rows of equal length. ``index_RL`` is the packed index of each token (None: rows are
    equally long already), and ``place_T`` the place of each packed token among the R L padded ones, in row ``row_T`` at
    ``column_T``. ``place_in_keys_T`` is its place among the R (E + L) keys of the rows (None: nothing is cached)."""

    view: View
    index_RL: Tensor | None
    place_T: Tensor
    row_T: Tensor
    column_T: Tensor
    place_in_keys_T: Tensor | None


@dataclass(frozen=True)
class Plan:
    """How a pack attends.

    ``block_length`` None: bidirectional inside a row; otherwise block-causal on a grid from column 0: a query attends
    to its own block and to earlier ones. ``copies`` 2: each row is [noisy | clean], the two halves at the same
    positions: noisy block b attends to itself and to the clean blocks before it, clean block b to the clean ones up to
    b (block diffusion training, arXiv 2503.09573), or, with ``causal_prefix``, causally. ``starts`` are the columns of
    the rows' first tokens, 0 unless given; block-causal rows start on the grid, unless ``phases`` says how many columns
    each row lacks of its first block. ``sequence``: the ranks that compute the pack together, without a cache.
    ``filled``: sizes of the padded view.

    ``clean``: the first so many tokens of each row attend causally, the others, its canvas, to the whole row and to all
    that it reads, which are the columns before it in their order. With a ``window``, a clean token attends to so many
    tokens, itself included, and the canvas to the ``window - 1`` before it and to itself (DiffusionGemma).

    ``shadows``, without a cache: the column and the number, by row, of its last tokens, which stand at the places of
    others. A shadow attends to the row but the token in its place; no other token attends to it (WINO).
    """

    lengths: tuple[int, ...]
    block_length: int | None = None
    copies: int = 1
    starts: tuple[int, ...] | None = None
    cached: Cached | None = field(default=None, compare=False)
    sequence: SequenceGroup | None = field(default=None, compare=False)
    filled: Filled | None = None
    clean: tuple[int, ...] | None = None
    window: int | None = None
    phases: tuple[int, ...] | None = None
    causal_prefix: bool = False
    shadows: tuple[tuple[int, int], ...] | None = None
    groups: tuple[Group, ...] = field(init=False)
    _computed: dict[tuple[Hashable, ...], Any] = field(init=False, compare=False, repr=False, default_factory=dict)

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

    @property
    def unmasked(self) -> bool:
        """Do the tokens of every row attend to all of its tokens?"""
        return self.clean is None and self.shadows is None and not any(map(self._masked, self.groups))

    @property
    def reading(self) -> Cached | None:
        """The cache, if any row reads it."""
        return self.cached if self.cached is not None and any(len(slots) for slots in self.cached.slots) else None

    def once(self, key: tuple[Hashable, ...], make: Callable[[], Value]) -> Value:
        """What ``make`` returns, computed once for all layers and forwards of this plan."""
        if key not in self._computed:
            self._computed[key] = make()
        value: Value = self._computed[key]
        return value

    def tables(self) -> dict[str, Tensor]:
        """What the padded view is made of, on the host: the rows' ``lengths`` [R], and the ``places`` of the tokens
        [T]; if they read a cache also how many slots (``counts`` [R]) and which (``reads`` [R, E]). It is filled, with
        zeros behind each row's slots."""
        lengths = [*self.lengths, *[0] * (self.filled.rows - len(self.lengths) if self.filled else 0)]
        length_R = torch.tensor(lengths)
        padding = Padding.of(length_R, max(self.filled.length if self.filled else 0, *lengths), self.tokens)
        tables = {"lengths": length_R, "places": padding.place_T}
        if self.reading is not None:
            slots = [*self.reading.slots, *[torch.zeros(0, dtype=torch.long)] * (len(lengths) - len(self.lengths))]
            reads = pad_sequence(slots, batch_first=True)
            missing = max(0, self.filled.cached - reads.shape[1]) if self.filled else 0
            tables |= {"counts": torch.tensor([len(s) for s in slots]), "reads": pad(reads, (0, missing))}
        return tables

    def place(self, tables: dict[str, Tensor], device: torch.device) -> None:
        """The caller has copied :meth:`tables` to a device."""
        self._computed["tables", device] = tables

    def positions(self, device: torch.device | str = "cpu") -> Tensor:
        """The positions of tokens in their rows, packed: int64 [T]."""
        parts = [torch.arange(g.length // self.copies, device=device).repeat(g.rows * self.copies) for g in self.groups]
        positions = parts[0] if len(parts) == 1 else torch.cat(parts)
        if self.shadows is not None:
            for end, (column, count) in zip(accumulate(self.lengths), self.shadows, strict=True):
                positions[end - count : end] = torch.arange(column, column + count, device=device)
        if self.starts is None:
            return positions
        length_R = torch.tensor(self.lengths, device=device)
        return positions + torch.tensor(self.starts, device=device).repeat_interleave(length_R)

    def within(self, window: int | None) -> Plan:
        """The plan of the layers with that window, computed once; this one where the window reaches everything."""
        if window is None or self.clean is None:
            return self
        starts = self.starts or (0,) * len(self.lengths)
        if max(start + clean for start, clean in zip(starts, self.clean, strict=True)) < window:
            return self
        return self.once(("within", window), lambda: replace(self, window=window))

    def clean_tokens(self, device: torch.device) -> Tensor | None:
        """True at clean tokens, False in canvases: boolean [T]; None for plans without either."""
        if self.clean is None:
            return None
        parts = (torch.arange(n) < clean for n, clean in zip(self.lengths, self.clean, strict=True))
        return torch.cat(list(parts)).to(device)

    def shadow_tokens(self, device: torch.device) -> Tensor:
        """True at shadows: boolean [T]."""
        counts = (count for _, count in self.shadows or ())
        parts = (torch.arange(n) >= n - count for n, count in zip(self.lengths, counts, strict=True))
        return torch.cat(list(parts)).to(device)

    def blocks(self, length: int, device: torch.device) -> Tensor:
        """The number of each token's block of ``length`` columns; those of rows and copies are different: int64 [T],
        computed once for all layers."""

        def make() -> Tensor:
            half_R = torch.tensor(self.lengths) // self.copies
            part_T = torch.arange(len(half_R) * self.copies).repeat_interleave(half_R.repeat_interleave(self.copies))
            pair_T2 = torch.stack([part_T, self.positions() // length], dim=1)
            return pair_T2.unique(dim=0, return_inverse=True)[1].to(device)

        return self.once(("blocks", length, device), make)

    def views(self, device: torch.device) -> list[View]:
        """The groups with their masks and reads, computed once for all layers."""

        def make() -> list[View]:
            return [self._view(g, device, self._mask_of(g, device)) for g in self.groups]

        return self.once(("views", device), make)

    def padded(self, device: torch.device) -> PaddedView:
        """The pack as one group, computed once for all layers."""
        return self.once(("padded", device), lambda: self._pad(device))

    def _pad(self, device: torch.device) -> PaddedView:
        to = self.filled
        if len(self.groups) == 1 and to is None:
            return self._padded_view(self.views(device)[0], None, torch.arange(self.tokens, device=device))
        lengths = [*self.lengths, *[0] * (to.rows - len(self.lengths) if to else 0)]
        group = Group(0, len(lengths), max(to.length if to else 0, *lengths))
        own: Tensor | None
        if self.shadows is not None:
            masks = ((n, self._shadow_mask(row)) for row, n in enumerate(lengths))
            own = torch.stack([pad(mask, (0, group.length - n, 0, group.length - n)) for n, mask in masks])[:, None]
            own = own.to(device)
        elif self.copies == 1 or self.block_length is None:  # a row's mask is a part of the longest one's
            own = self._mask_of(group, device)
        else:
            masks = ((n, block_mask(n, self.block_length, self.copies, device, self.causal_prefix)) for n in lengths)
            own = torch.cat([pad(mask, (0, group.length - n, 0, group.length - n)) for n, mask in masks])
        placed = self._computed.get(("tables", device))
        length_R = torch.tensor(lengths, device=device) if placed is None else placed["lengths"]
        padding = Padding.of(length_R, group.length, self.tokens)
        place_T = padding.place_T if placed is None else placed["places"]
        return self._padded_view(self._view(group, device, padding.mask(own)), padding.index_RL, place_T)

    @staticmethod
    def _padded_view(view: View, index_RL: Tensor | None, place_T: Tensor) -> PaddedView:
        row_T, column_T = place_T // view.group.length, place_T % view.group.length
        in_keys_T = None if view.reads_RE is None else place_T + (row_T + 1) * view.reads_RE.shape[1]
        return PaddedView(view, index_RL, place_T, row_T, column_T, in_keys_T)

    def _view(self, g: Group, device: torch.device, own: Tensor | None) -> View:
        """``own``: the mask among the tokens of the rows, [R or 1, 1, L, L]."""
        if self.cached is None:
            return View(g, None, own)
        slots = self.cached.slots[g.row : g.row + g.rows]
        slots = (*slots, *[torch.zeros(0, dtype=torch.long)] * (g.rows - len(slots)))
        width = max(len(s) for s in slots)
        if width == 0:
            return View(g, None, own)
        even = all(len(s) == width for s in slots) and self.window is None
        placed = self._computed.get(("tables", device), {}) if g.rows >= len(self.lengths) else {}
        if "reads" in placed and len(placed["reads"]) == g.rows:
            reads = placed["reads"]
            even = even and reads.shape[1] == width
        else:
            table = torch.stack(slots) if even else pad_sequence(list(slots), batch_first=True)
            if self.filled is not None and width < self.filled.cached:
                table, even = pad(table, (0, self.filled.cached - width)), False
            reads = table.to(device)
        width = reads.shape[1]
        gathered: dict[str, tuple[Tensor, Tensor]] | None = {} if self.cached.steady else None
        if even and own is None:
            return View(g, reads, None, gathered)
        count_R = placed["counts"] if "counts" in placed else torch.tensor([len(s) for s in slots], device=device)
        seen = (torch.arange(width, device=device)[None] < count_R[:, None])[:, None, None]
        seen = seen.expand(g.rows, 1, g.length, width)
        if self.window is not None:
            seen = seen & self._attends(g, torch.arange(width)).to(device)
        if own is None:
            own = torch.ones((1, 1, g.length, g.length), dtype=torch.bool, device=device)
        return View(g, reads, torch.cat([seen, own.expand(g.rows, 1, g.length, g.length)], dim=-1), gathered)

    def _mask_of(self, g: Group, device: torch.device) -> Tensor | None:
        """Boolean [R or 1, 1, L, L] among the tokens of rows of one length; None if all attend to all."""
        if self.shadows is not None:
            return torch.stack([self._shadow_mask(g.row + i) for i in range(g.rows)])[:, None].to(device)
        if self.clean is None:
            if self.block_length is None or not self._masked(g):
                return None
            phase_R = self._phases(g)
            if any(phase_R):
                return phased_mask(g.length, self.block_length, torch.tensor(phase_R, device=device))
            return block_mask(g.length, self.block_length, self.copies, device, self.causal_prefix)
        return self._attends(g, None).to(device) if any(self.clean[g.row : g.row + g.rows]) else None

    def _shadow_mask(self, row: int) -> Tensor:
        """Boolean [L, L] among the tokens of a row with shadows."""
        assert self.shadows is not None
        length, (column, count) = self.lengths[row], self.shadows[row]
        mask_LL, at = torch.ones((length, length), dtype=torch.bool), torch.arange(count)
        mask_LL[: length - count, length - count :] = False
        mask_LL[length - count + at, column + at] = False
        return mask_LL

    def _attends(self, g: Group, column_E: Tensor | None) -> Tensor:
        """:func:`clean_mask` of a group's rows to cached keys of these columns, or to their own (None)."""
        assert self.clean is not None
        rows = slice(g.row, g.row + g.rows)
        starts = torch.tensor((self.starts or (0,) * len(self.lengths))[rows])
        column_RE = starts[:, None] + torch.arange(g.length) if column_E is None else column_E.expand(g.rows, -1)
        return clean_mask(starts, torch.tensor(self.clean[rows]), g.length, column_RE, self.window)

    def _masked(self, g: Group) -> bool:
        """Are there tokens in a row of the group that do not attend to each other?"""
        return self.block_length is not None and (
            self.copies > 1 or g.length + max(self._phases(g)) > self.block_length
        )

    def _phases(self, g: Group) -> tuple[int, ...]:
        """The phases of a group's rows; 0 for rows that only fill the plan."""
        phases = (self.phases or ())[g.row : g.row + g.rows]
        return (*phases, *[0] * (g.rows - len(phases)))

    def grid_columns(self, device: torch.device) -> Tensor:
        """Each token's column, counted so that blocks begin at multiples of the block length: int64 [T]."""
        if self.phases is None:
            return self.positions(device)
        starts = self.starts or (0,) * len(self.lengths)
        shift_R = torch.tensor([p - start for p, start in zip(self.phases, starts, strict=True)], device=device)
        return self.positions(device) + shift_R.repeat_interleave(torch.tensor(self.lengths, device=device))


@dataclass(frozen=True)
class GroupQueries:
    """The selected tokens of one group, padded to equal counts a row. ``index_RQ`` points into the N selected tokens,
    ``keep_RQ`` is False on padding, ``column_RQ`` counts in the row."""

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
        count_R = torch.bincount(row, minlength=group.rows)
        padding = Padding.of(count_R, int(count_R.max()), high - low)
        selected.append(GroupQueries(low + padding.index_RL, padding.real_RL, column[padding.index_RL]))
    return selected
