"""The input of a forward: each row's window of its canvas in one pack, with reads and writes of the cache.

Shape letters: T packed tokens, R rows, E cache slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.buckets import LEAST_ROW, LEAST_TOKENS, MANY_TOKENS, Sizes, bucket
from dare_bench.model_adapters.sampling.pages import CachePage, PagePool

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.state import RowState


class CachePolicy:
    """No cache: every forward computes all columns that the row attends to. Other policies derive from this class."""

    used: ClassVar[bool] = False
    shared: ClassVar[bool] = False
    """Are pages committed once and shared by rows with a common prompt prefix?"""
    approximate: ClassVar[bool] = False
    block_alone: ClassVar[bool] = False
    """Do the later forwards of a block compute only the block?"""
    draws_twice: ClassVar[bool] = False
    """Does the published code draw its noise twice in later forwards of a block, using only the second?"""
    late_exit: ClassVar[bool] = False
    """Does the published code look only after a block's second forward whether the block is full?"""
    follows_canvas: ClassVar[bool] = False
    """Do windows depend on the written tokens, so that each forward has a pack of its own?"""

    def window(self, row: RowState) -> tuple[int, int]:
        """The columns that the next forward computes."""
        return 0, row.stop if row.sampler.attention.causal else len(row.canvas)

    def writes(self, row: RowState) -> tuple[int, int]:
        """The columns whose keys and values the next forward stores."""
        return 0, 0

    def reads(self, row: RowState) -> Tensor:
        """Cache slots that the next forward reads, int64 [E]."""
        return row.pages.slots[:0]


class ExactCache(CachePolicy):
    """Block-causal attention: a finished block never changes, and is committed with the next one's first forward. Where
    states predict the next token, that forward computes the block before in any case, for the first token."""

    used = shared = True

    def window(self, row: RowState) -> tuple[int, int]:
        before = row.begin - row.sampler.block_length if row.opens_by_state_before else row.begin
        return min(row.pages.columns, max(before, 0)), row.stop

    def writes(self, row: RowState) -> tuple[int, int]:
        return row.pages.columns, row.begin

    def reads(self, row: RowState) -> Tensor:
        return row.pages.slots[: self.window(row)[0]]


@dataclass(frozen=True)
class SubBlockCache(ExactCache):
    """Fast-dLLM v2's use_block_cache: the keys and values of the block's other sub-blocks of ``length`` tokens are
    kept, too, and become stale. They are computed again while the first token of the sub-block is a mask."""

    approximate = follows_canvas = True

    length: int

    def _inside(self, row: RowState) -> tuple[int, int] | None:
        """The columns of the first sub-block with masks, where the next forward computes nothing else."""
        masked = (row.canvas[row.begin : row.stop] == row.mask_id).nonzero()[:, 0]
        low = row.begin + int(masked[0]) // self.length * self.length
        kept = row.pages.block_begin == row.begin and row.canvas[low] != row.mask_id
        return (low, low + self.length) if kept else None

    def window(self, row: RowState) -> tuple[int, int]:
        return self._inside(row) or super().window(row)

    def writes(self, row: RowState) -> tuple[int, int]:
        keeps = self._inside(row) is None and row.canvas[row.begin] != row.mask_id
        return row.pages.columns, row.stop if keeps else row.begin

    def reads(self, row: RowState) -> Tensor:
        inside = self._inside(row)
        if inside is None:
            return super().reads(row)
        low, high = (column - row.begin for column in inside)
        slots = row.pages.block_slots
        return torch.cat([row.pages.slots, slots[:low], slots[high:]])


class CleanCache(CachePolicy):
    """A clean prefix, which attends causally: the tokens before a block never change, and are committed with the
    block's first forward."""

    used = True

    def _before(self, row: RowState) -> int:
        """The columns that earlier forwards have committed."""
        return row.begin if row.opened else row.begin - row.sampler.block_length if row.turns else 0

    def window(self, row: RowState) -> tuple[int, int]:
        return self._before(row), row.stop

    def writes(self, row: RowState) -> tuple[int, int]:
        return self._before(row), row.begin

    def reads(self, row: RowState) -> Tensor:
        return row.pages.slots[: self._before(row)]


class PrefixCache(CachePolicy):
    """Fast-dLLM: the first forward of a block computes all columns and stores those before the block; later forwards
    compute from the block on."""

    used = approximate = draws_twice = late_exit = True

    def window(self, row: RowState) -> tuple[int, int]:
        return super().window(row) if not row.opened else (row.begin, len(row.canvas))

    def writes(self, row: RowState) -> tuple[int, int]:
        return (0, row.begin) if not row.opened else (0, 0)

    def reads(self, row: RowState) -> Tensor:
        return row.pages.slots[:0] if not row.opened else row.pages.slots


class DualCache(PrefixCache):
    """Fast-dLLM: like the prefix cache, but the columns after the block are stored too; later forwards compute only the
    block."""

    draws_twice, block_alone = False, True

    def window(self, row: RowState) -> tuple[int, int]:
        return super().window(row) if not row.opened else (row.begin, row.stop)

    def writes(self, row: RowState) -> tuple[int, int]:
        return (0, len(row.canvas)) if not row.opened else (0, 0)

    def reads(self, row: RowState) -> Tensor:
        slots = super().reads(row)
        return torch.cat([slots[: row.begin], slots[row.stop :]])


NO_CACHE = CachePolicy()
CACHES: Mapping[str, CachePolicy] = {
    "none": NO_CACHE,
    "exact": ExactCache(),
    "clean": CleanCache(),
    "prefix": PrefixCache(),
    "dual": DualCache(),
}


@dataclass(frozen=True)
class AttentionPolicy:
    """How a row attends.

    ``causal``: block-causal attention on blocks that count from column 0; otherwise bidirectional.
    ``predicts_next``: the state at position i predicts token i + 1. ``cfg_scale``: classifier-free guidance, 0 is off.
    ``clean_prefix``, with ``causal``: tokens before a block attend causally, and blocks begin behind the prompt.
    """

    causal: bool = False
    predicts_next: bool = False
    cache: CachePolicy = NO_CACHE
    cfg_scale: float = 0.0
    clean_prefix: bool = False


@dataclass(frozen=True)
class Commit:
    """What a forward stores of a row with a shared cache: new pages, and the block itself where ``block``."""

    row: RowState
    pages: list[CachePage]
    block: bool


@dataclass(frozen=True)
class Candidates:
    """The tokens of a pack that may be open before it is rebuilt: as long as it serves, forwards have one shape.

    ``at_N`` in the pack, ``source_N`` the tokens whose states predict them, ``place_N`` in the canvases; ``slot_N``
    counts in the row, up to ``width``; ``groups`` are the indices of those that are decided together.
    """

    at_N: Tensor
    source_N: Tensor
    place_N: Tensor
    row_N: Tensor
    column_N: Tensor
    position_N: Tensor
    slot_N: Tensor
    editable_N: Tensor | None
    width: int
    groups: list[Tensor]

    def to(self, device: torch.device) -> Candidates:
        tensors = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("width", "groups")}
        moved: dict[str, Any] = {name: x_N if x_N is None else x_N.to(device) for name, x_N in tensors.items()}
        return Candidates(**moved, width=self.width, groups=[x_N.to(device) for x_N in self.groups])


@dataclass(eq=False)
class Pack:
    """The tokens of a forward: ``index_T`` among the concatenated canvases (None: all, in order), ``row_T`` and
    ``column_T``; ``fillable_T`` is True where a mask may be filled now, ``editable_T`` where a written token may be
    replaced, ``shift_T`` is 1 where the token before is in the pack, too. ``fresh``: valid for one forward only, since
    a row writes to the cache or is at the first forward of a cached block. ``masks_outside_R``: masks of the block that
    are not in the pack."""

    plan: Plan
    index_T: Tensor | None
    row_T: Tensor
    column_T: Tensor
    fillable_T: Tensor
    editable_T: Tensor | None
    shift_T: Tensor
    fresh: bool
    masks_outside_R: Tensor
    candidates: Candidates | None = None
    """For forwards of static shape."""
    commits: list[Commit] = field(default_factory=list)


class Packer:
    """Packs the rows of a batch for each turn; ``offsets`` are the beginnings of their canvases. ``kinds`` numbers the
    rows that decide together; for forwards of static shape only (None: open positions are listed in each forward).
    ``sizes``: fill packs with null tokens to these, with ``slots`` rows in all tables."""

    def __init__(
        self,
        rows: Sequence[RowState],
        offsets: Sequence[int],
        device: torch.device,
        store: KVStore | None,
        pool: PagePool | None,
        kinds: Sequence[int] | None = None,
        slots: int = 0,
        sizes: Sizes | None = None,
    ) -> None:
        self.kinds, self.slots, self.sizes = kinds, slots, sizes
        self.rows, self.offsets, self.device = rows, offsets, device
        self.store, self.pool = store, pool
        self.total = sum(len(row.canvas) for row in rows)

    def pack(self) -> Pack:
        """The pack of the next forward, sorted by window length so that equal windows attend together."""
        spans = [row.window() for row in self.rows]
        order = sorted(range(len(self.rows)), key=lambda i: (spans[i][1] - spans[i][0], len(self.rows[i].canvas)))
        lengths = [spans[i][1] - spans[i][0] for i in order]
        starts = tuple(spans[i][0] for i in order)
        cached, commits = self._cached(order, spans)
        clean = tuple(self.rows[i].begin - spans[i][0] for i in order)
        plan = self._plan(lengths, starts, cached, clean)
        whole = sum(lengths) == self.total and order == sorted(order) and self.sizes is None
        column_T = plan.positions()[: sum(lengths)]
        row_T = torch.tensor(order).repeat_interleave(torch.tensor(lengths))
        fillable_T, editable_T = self._open(row_T, column_T)
        first_T = torch.tensor(starts).repeat_interleave(torch.tensor(lengths))
        place_T, shift_T = torch.tensor(self.offsets)[row_T] + column_T, (column_T > first_T).long()
        candidates = None
        if self.kinds is not None:
            candidates = self._candidates(row_T, column_T, place_T, shift_T, fillable_T, editable_T)
            candidates = candidates if self.sizes is None else self._filled(candidates, plan.tokens - 1, self.sizes)
        return Pack(
            plan,
            None if whole else pad(place_T, (0, plan.tokens - len(place_T)), value=self.total).to(self.device),
            row_T.to(self.device),
            plan.positions(self.device),
            fillable_T.to(self.device),
            None if editable_T is None else editable_T.to(self.device),
            shift_T.to(self.device),
            fresh=cached is not None and (not cached.steady or any(row.cache.follows_canvas for row in self.rows)),
            masks_outside_R=torch.tensor(
                [self._masks_outside(*pair) for pair in zip(self.rows, spans, strict=True)]
            ).to(self.device),
            candidates=candidates if candidates is None else candidates.to(self.device),
            commits=commits,
        )

    def _plan(self, lengths: list[int], starts: tuple[int, ...], cached: Cached | None, clean: tuple[int, ...]) -> Plan:
        """The rows, then null rows that no other row attends to, if packs are filled. ``clean``: the tokens before the
        rows' blocks."""
        sampler = self.rows[0].sampler
        if sampler.attention.clean_prefix:
            return Plan(tuple(lengths), starts=starts if any(starts) else None, cached=cached, clean=clean)
        grid = sampler.block_length if sampler.attention.causal else None
        if self.sizes is None:
            return Plan(tuple(lengths), grid, starts=starts if any(starts) else None, cached=cached)
        total, longest = sum(lengths), max(lengths)
        missing = bucket(total, LEAST_TOKENS, steps=4 if total > MANY_TOKENS else 2) - total
        whole, rest = divmod(missing, longest)
        null = [longest] * whole + ([rest] if rest else [])
        if cached is not None:
            nothing = torch.zeros(0, dtype=torch.long)
            cached = replace(cached, slots=(*cached.slots, *[nothing] * len(null)))
        most_cached = 0 if cached is None else max(len(slots) for slots in cached.slots)
        filled = Filled(
            rows=self.sizes.grown("plan rows", len(lengths) + len(null)),
            length=bucket(longest, LEAST_ROW),
            cached=self.sizes.grown("cached", most_cached) if most_cached else 0,
        )
        starts = (*starts, *[0] * len(null))
        return Plan((*lengths, *null), grid, starts=starts if any(starts) else None, cached=cached, filled=filled)

    def _filled(self, c: Candidates, token: int, sizes: Sizes) -> Candidates:
        """With candidates that are never open, of the last null row, at the packed index ``token``."""
        missing = sizes.grown("candidates", len(c.at_N)) - len(c.at_N)
        null, editable_N = self.slots - 1, c.editable_N
        return Candidates(
            at_N=pad(c.at_N, (0, missing), value=token),
            source_N=pad(c.source_N, (0, missing), value=token),
            place_N=pad(c.place_N, (0, missing), value=self.total),
            row_N=pad(c.row_N, (0, missing), value=null),
            column_N=pad(c.column_N, (0, missing)),
            position_N=pad(c.position_N, (0, missing)),
            slot_N=pad(c.slot_N, (0, missing)),
            editable_N=None if editable_N is None else pad(editable_N, (0, missing)),
            width=sizes.grown("width", c.width),
            groups=c.groups,
        )

    def _candidates(
        self,
        row_T: Tensor,
        column_T: Tensor,
        place_T: Tensor,
        shift_T: Tensor,
        fillable_T: Tensor,
        editable_T: Tensor | None,
    ) -> Candidates:
        """The fillable columns of each row's block, and the masks before it. The host may not know what was written
        since, but no mask has been added outside of the block."""
        assert self.kinds is not None
        masked_T = torch.cat([row.canvas == row.mask_id for row in self.rows])[place_T]
        begin_R = torch.tensor([row.begin for row in self.rows])
        at_N = (fillable_T & (masked_T | (column_T >= begin_R[row_T]))).nonzero()[:, 0]
        row_N, column_N = row_T[at_N], column_T[at_N]
        count_R = torch.bincount(row_N, minlength=len(self.rows))
        counts = row_N.unique_consecutive(return_counts=True)[1]
        slot_N = torch.cat([torch.arange(n) for n in counts.tolist()]) if len(at_N) else at_N
        predicts_next = torch.tensor([row.sampler.attention.predicts_next for row in self.rows])
        source_N = at_N - shift_T[at_N] * predicts_next[row_N]
        prompt_R, kind_R = torch.tensor([len(row.prompt) for row in self.rows]), torch.tensor(self.kinds)
        return Candidates(
            at_N=at_N,
            source_N=source_N,
            place_N=place_T[at_N],
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - prompt_R[row_N],
            slot_N=slot_N,
            editable_N=None if editable_T is None else editable_T[at_N],
            width=max(int(count_R.max()), 1),
            groups=[(kind_R[row_N] == kind).nonzero()[:, 0] for kind in range(max(self.kinds) + 1)],
        )

    @staticmethod
    def _masks_outside(row: RowState, span: tuple[int, int]) -> int:
        """Masks of the block outside of the window; there are none but in windows that follow the canvas."""
        if not row.cache.follows_canvas:
            return 0
        masked = row.canvas == row.mask_id
        return int(masked[row.begin : row.stop].sum() - masked[max(row.begin, span[0]) : span[1]].sum())

    def _open(self, row_T: Tensor, column_T: Tensor) -> tuple[Tensor, Tensor | None]:
        stop_R = torch.tensor([row.stop for row in self.rows])
        low_R = torch.tensor([row.low for row in self.rows])
        fillable_T = (column_T < stop_R[row_T]) & (column_T >= low_R[row_T])
        edits = [row.sampler.strategy.edits for row in self.rows]
        if not any(edits):
            return fillable_T, None
        first_R = torch.tensor([row.first_response for row in self.rows])
        return fillable_T, fillable_T & torch.tensor(edits)[row_T] & (column_T >= first_R[row_T])

    def _cached(self, order: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[Cached | None, list[Commit]]:
        """The reads of every row and the writes of those that commit; allocates slots."""
        if self.pool is None or self.store is None or not any(row.cache.used for row in self.rows):
            return None, []
        at, to, place = [], [], 0
        commits: list[Commit] = []
        for i in order:
            row, (start, stop) = self.rows[i], spans[i]
            low, high = row.cache.writes(row)
            if high > low:
                slots, pages = self._slots(self.pool, row, low, high)
                at.append(torch.arange(place + low - start, place + high - start))
                to.append(slots)
                if row.cache.shared:
                    commits.append(Commit(row, pages, block=high > row.begin))
            place += stop - start
        none = torch.zeros(0, dtype=torch.long)
        cached = Cached(
            self.store,
            tuple(self.rows[i].cache.reads(self.rows[i]) for i in order),
            (torch.cat(at) if at else none).to(self.device),
            (torch.cat(to) if to else none).to(self.device),
            steady=not to and all(row.opened for row in self.rows),
        )
        return cached, commits

    @staticmethod
    def _slots(pool: PagePool, row: RowState, low: int, high: int) -> tuple[Tensor, list[CachePage]]:
        """Slots of the columns to write: shared caches commit new pages and may overwrite those of the block, the
        others overwrite their pages."""
        if row.cache.shared:
            length = row.sampler.block_length
            pages = [pool.take(length) for _ in range(low, row.begin, length)]
            slots = torch.tensor([slot for page in pages for slot in page.slots], dtype=torch.long)
            return (torch.cat([slots, pool.of_block(row.pages, length)]) if high > row.begin else slots), pages
        if row.pages.columns < high:
            row.pages.add([pool.take(high - row.pages.columns)])
        return row.pages.slots[low:high], []

    def committed(self, pack: Pack) -> None:
        """The forward succeeded: commit its pages."""
        for commit in pack.commits:
            assert self.pool is not None
            row, pages = commit.row, commit.pages
            if pages:
                low = row.pages.columns
                tokens = row.canvas[low : low + sum(len(page.slots) for page in pages)].tolist()
                self.pool.commit(row.pages, pages, tokens, row.sampler.block_length)
            if commit.block:
                row.pages.block_begin = row.begin
        pack.commits = []

    def abandoned(self, pack: Pack) -> None:
        """The forward failed: return its slots."""
        for commit in pack.commits:
            assert self.pool is not None
            self.pool.give_back(commit.pages)
        pack.commits = []
