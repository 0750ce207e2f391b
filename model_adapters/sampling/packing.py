"""The input of a forward: each row's window of its canvas in one pack, with reads and writes of the cache.

Shape letters: T packed tokens, R rows, N candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.buckets import LEAST_ROW, LEAST_TOKENS, MANY_TOKENS, Sizes, bucket
from dare_bench.model_adapters.sampling.pages import CachePage, PagePool, page_sizes
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.upload import mapped, tensors_of, upload


@dataclass(frozen=True)
class Commit:
    """What a forward stores of a row with a shared cache: new pages, and the block itself where ``block``."""

    row: RowState
    pages: list[CachePage]
    block: bool


@dataclass(frozen=True)
class Candidates:
    """The tokens of a pack that may be open before it is rebuilt: as long as it serves, forwards have one shape.

    ``at_N`` in the pack, ``source_N`` the tokens whose states predict them, ``copy_N`` the unconditional copies of
    these with guidance, ``place_N`` in the canvases; ``position_N`` counts from the first response token, ``slot_N`` in
    the row, up to ``width``; ``editable_N`` is True where a written token may be replaced (None: nowhere); ``groups``
    are the indices of those that are decided together.
    """

    at_N: Tensor
    source_N: Tensor
    copy_N: Tensor | None
    place_N: Tensor
    row_N: Tensor
    column_N: Tensor
    position_N: Tensor
    slot_N: Tensor
    editable_N: Tensor | None
    width: int
    groups: list[Tensor]


@dataclass(frozen=True)
class First:
    """The candidates of rows' first states, where rows stand in several: ``index_N`` among all candidates, of which
    each state of the row has ``size_N``, one state after another."""

    candidates: Candidates
    index_N: Tensor
    size_N: Tensor


@dataclass(frozen=True, eq=False)
class Pack:
    """The tokens of a forward: ``index_T`` among the concatenated canvases (None: all, in order), at ``column_T``.
    ``fresh``: valid for one forward only, since a row writes to the cache or is at the first forward of a cached block.
    ``masks_outside_R``: masks of the block that are not in the pack, if windows follow the canvas. With guidance,
    copies of the rows come behind them, and ``hidden_T`` is True at the prompts of these, which are shown as masks."""

    plan: Plan
    index_T: Tensor | None
    column_T: Tensor
    candidates: Candidates
    fresh: bool
    masks_outside_R: Tensor | None
    hidden_T: Tensor | None
    commits: Sequence[Commit]
    first: First | None


class Packer:
    """Packs the rows of a batch for each forward; with drafts, ``rows`` are all states. ``kinds`` numbers the rows that
    decide together. ``sizes``: fill packs with null tokens to these, with ``slots`` rows in all tables."""

    def __init__(
        self,
        rows: Sequence[RowState],
        device: torch.device,
        store: KVStore | None,
        pool: PagePool | None,
        kinds: Sequence[int],
        slots: int,
        sizes: Sizes | None,
    ) -> None:
        self.kinds, self.slots, self.sizes = kinds, slots, sizes
        self.rows, self.device = rows, device
        self.store, self.pool = store, pool
        *self.offsets, self.total = [0, *accumulate(len(row.canvas) for row in rows)]
        self.followed = any(row.cache.follows_canvas for row in rows)
        self.guided = any(row.sampler.attention.cfg_scale > 0 for row in rows)

    def pack(self) -> Pack:
        """The pack of the next forward, sorted by window length so that equal windows attend together."""
        spans = [row.window() for row in self.rows]
        packed = [i for i, row in enumerate(self.rows) if row.drafted or not row.depth]
        order = sorted(packed, key=lambda i: (spans[i][1] - spans[i][0], len(self.rows[i].canvas)))
        lengths = [spans[i][1] - spans[i][0] for i in order]
        cached, commits = self._cached(order, spans)
        plan = self._plan(order, spans, lengths, cached)
        column_T = plan.positions()
        place_T = column_T[: sum(lengths)] + _repeated([self.offsets[i] for i in order], lengths)
        whole = len(place_T) == self.total and order == sorted(order) and self.sizes is None and not self.guided
        candidates, hidden_T = self._candidates(order, spans, lengths), None
        first = self._first(candidates) if len({row.depth for row in self.rows}) > 1 else None
        if self.sizes is not None:
            candidates = self._filled(candidates, sum(lengths), self.sizes, "candidates")
        if self.guided:
            hidden_T = torch.cat([row.guide_hides for row in self.rows])[place_T]
            hidden_T = pad(hidden_T, (len(place_T), plan.tokens - 2 * len(place_T)))
            place_T = place_T.repeat(2)
        pack = Pack(
            plan,
            None if whole else pad(place_T, (0, plan.tokens - len(place_T)), value=self.total),
            column_T,
            candidates,
            fresh=cached is not None and (not cached.steady or self.followed),
            masks_outside_R=self._masks_outside(spans) if self.followed else None,
            hidden_T=hidden_T,
            commits=commits,
            first=first,
        )
        return pack if self.device.type == "cpu" else _uploaded(pack, self.device)

    def _plan(self, order: Sequence[int], spans: Sequence[tuple[int, int]], lengths: list[int], cached: Any) -> Plan:
        """The rows, with guidance their copies, then null rows that no other row attends to, if packs are filled."""
        sampler, starts = self.rows[0].sampler, tuple(spans[i][0] for i in order)
        length, phases = sampler.block_length, None
        if sampler.attention.from_prompt:
            phases = tuple((spans[i][0] - self.rows[i].begin) % length for i in order) * (2 if self.guided else 1)
        if self.guided:
            cached = _without_reads(cached, len(lengths))
            lengths, starts = [*lengths, *lengths], (*starts, *starts)
        if sampler.attention.clean_prefix:
            clean = tuple(self.rows[i].begin - spans[i][0] for i in order)
            return Plan(tuple(lengths), starts=starts if any(starts) else None, cached=cached, clean=clean)
        grid = length if sampler.attention.causal else None
        if self.sizes is None:
            return Plan(tuple(lengths), grid, starts=starts if any(starts) else None, cached=cached, phases=phases)
        total, longest = sum(lengths), max(lengths)
        missing = bucket(total, LEAST_TOKENS, steps=4 if total > MANY_TOKENS else 2) - total
        whole, rest = divmod(missing, longest)
        null = [longest] * whole + ([rest] if rest else [])
        cached = _without_reads(cached, len(null))
        most_cached = 0 if cached is None else max(len(slots) for slots in cached.slots)
        filled = Filled(
            rows=self.sizes.grown("plan rows", len(lengths) + len(null)),
            length=bucket(longest, LEAST_ROW),
            cached=self.sizes.grown("cached", most_cached) if most_cached else 0,
        )
        starts = (*starts, *[0] * len(null))
        phases = None if phases is None else (*phases, *[0] * len(null))
        return Plan(
            (*lengths, *null), grid, starts=starts if any(starts) else None, cached=cached, filled=filled, phases=phases
        )

    def _candidates(self, order: Sequence[int], spans: Sequence[tuple[int, int]], lengths: Sequence[int]) -> Candidates:
        """The candidates of each row, and what a forward has to know of them."""
        rows = [self.rows[i] for i in order]
        column_N = torch.cat(parts := [row.candidates(*spans[i]) for i, row in zip(order, rows, strict=True)])
        counts, edits = [len(part) for part in parts], any(row.sampler.strategy.edits for row in rows)
        places = zip(order, rows, accumulate([0, *lengths]), accumulate([0, *counts]), strict=False)
        of_rows = [
            (i, start - spans[i][0], spans[i][0], self.offsets[i], row.answer_begin, first, row.editable_from)
            for i, row, start, first in places
        ]
        table = torch.tensor(of_rows).repeat_interleave(torch.tensor(counts), dim=0).unbind(1)
        row_N, start_N, low_N, offset_N, answer_N, first_N, editable_from_N = table
        source_N = at_N = column_N + start_N
        if rows[0].sampler.attention.predicts_next:  # but where the state before is not computed
            source_N = at_N - (column_N > low_N).long()
        return Candidates(
            at_N=at_N,
            source_N=source_N,
            copy_N=source_N + sum(lengths) if self.guided else None,
            place_N=column_N + offset_N,
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - answer_N,
            slot_N=torch.arange(len(column_N)) - first_N,
            editable_N=column_N >= editable_from_N if edits else None,
            width=max(*counts, 1),
            groups=self._groups(row_N),
        )

    def _groups(self, row_N: Tensor) -> list[Tensor]:
        """The indices of the candidates of each kind."""
        if len(set(self.kinds)) == 1:
            return [torch.arange(len(row_N))]
        kind_N = torch.tensor(self.kinds)[row_N]
        return [(kind_N == kind).nonzero()[:, 0] for kind in range(max(self.kinds) + 1)]

    def _first(self, candidates: Candidates) -> First:
        """The candidates of rows' first states."""
        index_N = (torch.tensor([row.depth for row in self.rows])[candidates.row_N] == 0).nonzero()[:, 0]
        first = mapped(replace(candidates, groups=[]), (Candidates,), lambda _, x_N: x_N[index_N])
        first = replace(first, groups=self._groups(first.row_N))
        size_N = torch.bincount(first.row_N, minlength=len(self.rows))[first.row_N]
        if self.sizes is not None:
            first = self._filled(first, 1, self.sizes, "first")
            missing = len(first.row_N) - len(index_N)
            index_N, size_N = pad(index_N, (0, missing)), pad(size_N, (0, missing))
        return First(first, index_N, size_N)

    def _filled(self, candidates: Candidates, tokens: int, sizes: Sizes, name: str) -> Candidates:
        """With candidates that are never open, of the last null row, at the last of the rows' ``tokens`` tokens."""
        missing = sizes.grown(name, len(candidates.at_N)) - len(candidates.at_N)
        null = {".at_N": tokens - 1, ".source_N": tokens - 1, ".place_N": self.total, ".row_N": self.slots - 1}
        null[".copy_N"] = 2 * tokens - 1
        groups, bare = candidates.groups, replace(candidates, groups=[])
        filled = mapped(bare, (Candidates,), lambda of, x_N: pad(x_N, (0, missing), value=null.get(of, 0)))
        return replace(filled, groups=groups, width=sizes.grown("width", candidates.width))

    def _masks_outside(self, spans: Sequence[tuple[int, int]]) -> Tensor:
        """Masks of each row's block outside of its window; there are none but in windows that follow the canvas."""
        counts = []
        for row, (low, high) in zip(self.rows, spans, strict=True):
            masked = row.canvas == row.mask_id
            outside = int(masked[row.begin : row.stop].sum() - masked[max(row.begin, low) : high].sum())
            counts.append(outside if row.cache.follows_canvas else 0)
        return pad(torch.tensor(counts), (0, self.slots - len(counts)))

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
            torch.cat(at) if at else none,
            torch.cat(to) if to else none,
            steady=not to and all(row.opened for row in self.rows),
        )
        return cached, commits

    @staticmethod
    def _slots(pool: PagePool, row: RowState, low: int, high: int) -> tuple[Tensor, list[CachePage]]:
        """Slots of the columns to write: shared caches commit new pages and may overwrite those of the block, the
        others overwrite their pages."""
        if row.cache.shared:
            length = row.sampler.block_length
            pages = [pool.take(count) for count in page_sizes(row.begin - low, length)]
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

    def abandoned(self, pack: Pack) -> None:
        """The forward failed: return its slots."""
        for commit in pack.commits:
            assert self.pool is not None
            self.pool.give_back(commit.pages)


def _uploaded(pack: Pack, device: torch.device) -> Pack:
    """A pack with its tensors on the device, by one copy."""
    plan, kinds = pack.plan, (Pack, Candidates, First, Cached)
    record = [pack, plan.cached]
    host, tables = tensors_of(record, kinds), plan.tables()
    there = upload({**host, **tables}, device)
    pack, cached = mapped(record, kinds, lambda name, _: there[name])
    plan = replace(plan, cached=cached)
    plan.place({name: there[name] for name in tables}, device)
    return replace(pack, plan=plan)


def _repeated(values: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Each value so many times, int64."""
    return torch.tensor(values, dtype=torch.long).repeat_interleave(torch.tensor(counts, dtype=torch.long))


def _without_reads(cached: Cached | None, rows: int) -> Cached | None:
    """With so many rows behind the others that read nothing."""
    nothing = torch.zeros(0, dtype=torch.long)
    return cached and replace(cached, slots=(*cached.slots, *[nothing] * rows))
