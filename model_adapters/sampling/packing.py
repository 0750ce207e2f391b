"""The input of a forward: each row's window of its canvas in one pack, with reads and writes of the cache.

Shape letters: T packed tokens, R rows, N candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling.buckets import LEAST_ROW, LEAST_TOKENS, MANY_TOKENS, Sizes, bucket
from dare_bench.model_adapters.sampling.pages import CachePage, PagePool
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.upload import upload


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
    these with guidance, ``place_N`` in the canvases; ``slot_N`` counts in the row, up to ``width``; ``groups`` are the
    indices of those that are decided together.
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
class PackTokens:
    """Of the tokens of a pack, without copies and null tokens: the row; ``fillable_T`` is True where a mask may be
    filled now, ``editable_T`` where a written token may be replaced. Where states predict the next token, ``shift_T``
    is 1 if the token before is in the pack, too."""

    row_T: Tensor
    fillable_T: Tensor
    editable_T: Tensor | None
    shift_T: Tensor | None


@dataclass(frozen=True, eq=False)
class Pack:
    """The tokens of a forward: ``index_T`` among the concatenated canvases (None: all, in order), at ``column_T``.
    ``fresh``: valid for one forward only, since a row writes to the cache or is at the first forward of a cached block.
    ``masks_outside_R``: masks of the block that are not in the pack, if windows follow the canvas. With guidance,
    copies of the rows come behind them, and ``hidden_T`` is True at the prompts of these, which are shown as masks."""

    plan: Plan
    index_T: Tensor | None
    column_T: Tensor
    tokens: PackTokens
    fresh: bool
    masks_outside_R: Tensor | None
    hidden_T: Tensor | None
    commits: Sequence[Commit]
    candidates: Candidates | None = None
    """For forwards of static shape."""


class Packer:
    """Packs the rows of a batch for each turn. ``kinds`` numbers the rows that decide together; for forwards of static
    shape only (None: open positions are listed in each forward). ``sizes``: fill packs with null tokens to these, with
    ``slots`` rows in all tables."""

    def __init__(
        self,
        rows: Sequence[RowState],
        device: torch.device,
        store: KVStore | None,
        pool: PagePool | None,
        kinds: Sequence[int] | None,
        slots: int,
        sizes: Sizes | None,
    ) -> None:
        self.kinds, self.slots, self.sizes = kinds, slots, sizes
        self.rows, self.device = rows, device
        self.store, self.pool = store, pool
        *self.offsets, self.total = [0, *accumulate(len(row.canvas) for row in rows)]
        self.predicts_next = any(row.sampler.attention.predicts_next for row in rows)
        self.followed = any(row.cache.follows_canvas for row in rows)
        self.guided = any(row.sampler.attention.cfg_scale > 0 for row in rows)

    def pack(self) -> Pack:
        """The pack of the next forward, sorted by window length so that equal windows attend together."""
        spans = [row.window() for row in self.rows]
        order = sorted(range(len(self.rows)), key=lambda i: (spans[i][1] - spans[i][0], len(self.rows[i].canvas)))
        lengths = [spans[i][1] - spans[i][0] for i in order]
        starts = tuple(spans[i][0] for i in order)
        cached, commits = self._cached(order, spans)
        clean = tuple(self.rows[i].begin - spans[i][0] for i in order)
        plan = self._plan(lengths, starts, cached, clean)
        whole = sum(lengths) == self.total and order == sorted(order) and self.sizes is None and not self.guided
        row_T = torch.tensor(order).repeat_interleave(torch.tensor(lengths))
        column_T = plan.positions()
        place_T = self._by_row(self.offsets, row_T) + column_T[: len(row_T)]
        tokens = self._tokens(row_T, column_T[: len(row_T)], [span[0] for span in spans])
        candidates = None
        if self.kinds is not None:
            candidates = self._candidates(tokens, column_T[: len(row_T)], place_T, self.kinds)
            if self.sizes is not None:
                candidates = self._filled(candidates, len(row_T), self.sizes)
        hidden_T = None
        if self.guided:
            hidden_T = column_T[: len(row_T)] < self._by_row((len(row.prompt) for row in self.rows), row_T)
            hidden_T = pad(hidden_T, (len(row_T), plan.tokens - 2 * len(row_T)))
            place_T = place_T.repeat(2)
        pack = Pack(
            plan,
            None if whole else pad(place_T, (0, plan.tokens - len(place_T)), value=self.total),
            column_T,
            tokens,
            fresh=cached is not None and (not cached.steady or self.followed),
            masks_outside_R=self._masks_outside(spans) if self.followed else None,
            hidden_T=hidden_T,
            commits=commits,
            candidates=candidates,
        )
        return self._uploaded(pack)

    def _uploaded(self, pack: Pack) -> Pack:
        """With its tensors on the device, by one copy."""
        if self.device.type == "cpu":
            return pack
        plan, candidates, cached = pack.plan, pack.candidates, pack.plan.cached
        parts: dict[str, Pack | PackTokens | Candidates | Cached | None]
        parts = {"pack": pack, "tokens": pack.tokens, "candidates": candidates, "cached": cached}
        host = {f"{of}.{name}": x for of, part in parts.items() if part for name, x in _tensors(part).items()}
        host |= {f"plan.{name}": x for name, x in plan.tables().items()}
        host |= {f"group.{i}": x for i, x in enumerate(candidates.groups if candidates else ())}
        there = upload(host, self.device)

        def part(of: str) -> dict[str, Any]:
            return {name.partition(".")[2]: x for name, x in there.items() if name.startswith(f"{of}.")}

        plan = replace(plan, cached=cached and replace(cached, **part("cached")))
        plan.place(part("plan"), self.device)
        moved: dict[str, Any] = {**part("pack"), "tokens": replace(pack.tokens, **part("tokens")), "plan": plan}
        if candidates is not None:
            moved["candidates"] = replace(candidates, **part("candidates"), groups=[*part("group").values()])
        return replace(pack, **moved)

    @staticmethod
    def _by_row(values: Iterable[int], row_T: Tensor) -> Tensor:
        """A value of each row, at its tokens."""
        return torch.tensor(list(values))[row_T]

    def _plan(self, lengths: list[int], starts: tuple[int, ...], cached: Cached | None, clean: tuple[int, ...]) -> Plan:
        """The rows, with guidance their copies, then null rows that no other row attends to, if packs are filled.
        ``clean``: the tokens before the rows' blocks."""
        sampler = self.rows[0].sampler
        if self.guided:
            cached = _without_reads(cached, len(lengths))
            lengths, starts = [*lengths, *lengths], (*starts, *starts)
        if sampler.attention.clean_prefix:
            return Plan(tuple(lengths), starts=starts if any(starts) else None, cached=cached, clean=clean)
        grid = sampler.block_length if sampler.attention.causal else None
        if self.sizes is None:
            return Plan(tuple(lengths), grid, starts=starts if any(starts) else None, cached=cached)
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
        return Plan((*lengths, *null), grid, starts=starts if any(starts) else None, cached=cached, filled=filled)

    def _candidates(self, tokens: PackTokens, column_T: Tensor, place_T: Tensor, kinds: Sequence[int]) -> Candidates:
        """The fillable columns of each row's block, and the masks before it. The host may not know what was written
        since, but no mask has been added outside of the block."""
        row_T, shift_T, editable_T = tokens.row_T, tokens.shift_T, tokens.editable_T
        masked_T = torch.cat([row.canvas == row.mask_id for row in self.rows])[place_T]
        in_block_T = column_T >= self._by_row((row.begin for row in self.rows), row_T)
        at_N = (tokens.fillable_T & (masked_T | in_block_T)).nonzero()[:, 0]
        row_N, column_N, source_N = row_T[at_N], column_T[at_N], at_N if shift_T is None else at_N - shift_T[at_N]
        counts = row_N.unique_consecutive(return_counts=True)[1].tolist()
        kind_N = self._by_row(kinds, row_N)
        return Candidates(
            at_N=at_N,
            source_N=source_N,
            copy_N=source_N + len(row_T) if self.guided else None,
            place_N=place_T[at_N],
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - self._by_row((len(row.prompt) for row in self.rows), row_N),
            slot_N=torch.cat([torch.arange(n) for n in counts]) if counts else at_N,
            editable_N=None if editable_T is None else editable_T[at_N],
            width=max(counts, default=1),
            groups=[(kind_N == kind).nonzero()[:, 0] for kind in range(max(kinds) + 1)],
        )

    def _filled(self, candidates: Candidates, tokens: int, sizes: Sizes) -> Candidates:
        """With candidates that are never open, of the last null row, at the last of the rows' ``tokens`` tokens."""
        missing = sizes.grown("candidates", len(candidates.at_N)) - len(candidates.at_N)
        null = {"at_N": tokens - 1, "source_N": tokens - 1, "place_N": self.total, "row_N": self.slots - 1}
        null["copy_N"] = 2 * tokens - 1
        filled: dict[str, Any] = {
            name: pad(x_N, (0, missing), value=null.get(name, 0)) for name, x_N in _tensors(candidates).items()
        }
        return replace(candidates, **filled, width=sizes.grown("width", candidates.width))

    def _masks_outside(self, spans: Sequence[tuple[int, int]]) -> Tensor:
        """Masks of each row's block outside of its window; there are none but in windows that follow the canvas."""
        counts = []
        for row, (low, high) in zip(self.rows, spans, strict=True):
            masked = row.canvas == row.mask_id
            outside = int(masked[row.begin : row.stop].sum() - masked[max(row.begin, low) : high].sum())
            counts.append(outside if row.cache.follows_canvas else 0)
        return pad(torch.tensor(counts), (0, self.slots - len(counts)))

    def _tokens(self, row_T: Tensor, column_T: Tensor, starts: Sequence[int]) -> PackTokens:
        """``starts`` are the first columns of the rows' windows."""
        shift_T = (column_T > self._by_row(starts, row_T)).long() if self.predicts_next else None
        fillable_T = column_T < self._by_row((row.stop for row in self.rows), row_T)
        fillable_T &= column_T >= self._by_row((row.low for row in self.rows), row_T)
        edits = [row.sampler.strategy.edits for row in self.rows]
        if not any(edits):
            return PackTokens(row_T, fillable_T, None, shift_T)
        in_response_T = column_T >= self._by_row((row.first_response for row in self.rows), row_T)
        return PackTokens(row_T, fillable_T, fillable_T & self._by_row(edits, row_T) & in_response_T, shift_T)

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

    def abandoned(self, pack: Pack) -> None:
        """The forward failed: return its slots."""
        for commit in pack.commits:
            assert self.pool is not None
            self.pool.give_back(commit.pages)


def _without_reads(cached: Cached | None, rows: int) -> Cached | None:
    """With so many rows behind the others that read nothing."""
    nothing = torch.zeros(0, dtype=torch.long)
    return cached and replace(cached, slots=(*cached.slots, *[nothing] * rows))


def _tensors(record: PackTokens | Pack | Candidates | Cached) -> dict[str, Tensor]:
    """Its tensors by name."""
    return {f.name: x for f in fields(record) if isinstance(x := getattr(record, f.name), Tensor)}
