"""The input of a forward: each row's window of its canvas in one pack, with reads and writes of the cache.

Shape letters: T packed tokens, R rows, N candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.diffusion.plan import Cached, Filled, Plan
from dare_bench.model_adapters.sampling.buckets import LEAST_ROW, LEAST_TOKENS, MANY_TOKENS, Sizes, bucket
from dare_bench.model_adapters.sampling.row_cache import RowCache
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.upload import mapped, uploaded


@dataclass(frozen=True)
class Candidates:
    """The tokens of a pack that may be open before it is rebuilt: as long as it serves, forwards have one shape.

    ``at_N`` in the pack, ``source_N`` the tokens whose states predict them, ``copy_N`` the unconditional copies of
    these with guidance, ``place_N`` in the canvases; ``position_N`` counts from the first response token, ``slot_N`` in
    the row, up to ``width``; ``editable_N`` is True where a written token may be replaced (None: nowhere);
    ``shadow_N`` are the second tokens at their places, which predict them from all others (None: there are none);
    ``groups`` are the indices of those that are decided together.
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
    shadow_N: Tensor | None
    width: int
    groups: list[Tensor]

    def repeated(self, shift_DR: Tensor, canvas: int, slots: int) -> Candidates:
        """The candidates of D states of the rows, one state after another. In the pack they are so much behind those of
        the first state; each state has ``canvas`` tokens in the canvases, and ``slots`` rows in the tables."""
        count, states = len(self.at_N), len(shift_DR)
        state_N, shift_N = torch.arange(states).repeat_interleave(count), shift_DR[:, self.row_N].reshape(-1)
        more = {".at_N": shift_N, ".source_N": shift_N, ".place_N": canvas * state_N, ".row_N": slots * state_N}
        bare = replace(self, groups=[])
        every = mapped(bare, (Candidates,), lambda of, x_N: x_N.repeat(states) + more.get(of, 0))
        return replace(every, groups=[torch.cat([at_N + count * i for i in range(states)]) for at_N in self.groups])


@dataclass(frozen=True, eq=False)
class Pack:
    """The tokens of a forward: ``index_T`` among the concatenated canvases (None: all, in order), at ``column_T``.
    ``fresh``: valid for one forward only, since a row writes to the cache or is at the first forward of a cached block.
    ``masks_outside_R``: masks of the block that are not in the pack, if windows follow the canvas. With guidance,
    copies of rows come behind them, whose prompts (``hidden_T``) are shown as masks. With drafts, ``first`` are the
    candidates of rows' first states; the others are packed if the block had a forward (``whole``: of all rows)."""

    plan: Plan
    index_T: Tensor | None
    column_T: Tensor
    candidates: Candidates
    fresh: bool
    masks_outside_R: Tensor | None
    hidden_T: Tensor | None
    whole: bool
    first: Candidates | None


class Packer:
    """Packs the rows of a batch for each forward. ``kinds`` numbers the rows that decide together. ``sizes``: fill
    packs with null tokens to these. Tables on the device have ``slots`` rows and ``canvas`` tokens of each of
    ``states``."""

    def __init__(
        self,
        rows: Sequence[RowState],
        device: torch.device,
        cache: RowCache | None,
        kinds: Sequence[int],
        slots: int,
        canvas: int,
        states: int,
        sizes: Sizes | None,
    ) -> None:
        self.kinds, self.slots, self.canvas, self.states, self.sizes = kinds, slots, canvas, states, sizes
        self.rows, self.device, self.cache = rows, device, cache
        *self.offsets, self.total = [0, *accumulate(len(row.canvas) for row in rows)]
        self.computed: list[int] = []
        """The tokens of each row in the last pack."""
        self.followed = any(row.cache.follows_canvas for row in rows)
        self.guided = any(row.sampler.attention.cfg_scale > 0 for row in rows)

    def pack(self) -> Pack:
        """The pack of the next forward, sorted by window length so that equal windows attend together."""
        rows, spans = self.rows, [row.window() for row in self.rows]
        computed = self.computed = [high - low + row.shadows for row, (low, high) in zip(rows, spans, strict=True)]
        order = sorted(range(len(rows)), key=lambda i: (computed[i], len(rows[i].canvas)))
        packed = [(0, i) for i in order]
        packed += [(state, i) for state in range(1, self.states) for i in order if rows[i].opened]
        number = [i for _, i in packed]
        lengths = [computed[i] for i in number]
        cached = None
        if self.cache is not None and any(row.cache.used for row in rows):
            cached = self.cache.access([rows[i] for i in number], [spans[i] for i in number])
        plan = self._plan(number, spans, cached)
        column_T, count = plan.positions(), sum(lengths)
        begin_R = torch.tensor([self.offsets[i] + self.canvas * state for state, i in packed])
        place_T = column_T[:count] + begin_R.repeat_interleave(torch.tensor(lengths))
        in_order = count == self.canvas * self.states and order == sorted(order) and self.sizes is None
        candidates, first, hidden_T = self._candidates(order, spans), None, None
        if self.sizes is not None:
            candidates = self._filled(candidates, count, self.sizes)
        if self.states > 1:
            start = dict(zip(packed, accumulate(lengths, initial=0), strict=False))
            shifts = [
                [start.get((s, i), start[0, i]) - start[0, i] for i in range(len(rows))] for s in range(self.states)
            ]
            first = candidates
            candidates = first.repeated(pad(torch.tensor(shifts), (0, self.slots - len(rows))), self.canvas, self.slots)
        if self.guided:
            candidates = replace(candidates, copy_N=candidates.source_N + count)
            hidden_T = torch.cat([row.sampler.attention.guide_hides(row) for row in rows])[place_T % self.canvas]
            hidden_T = pad(hidden_T, (count, plan.tokens - 2 * count))
            place_T = place_T.repeat(2)
        elif plan.shadows is not None:
            hidden_T = plan.shadow_tokens(torch.device("cpu"))
        pack = Pack(
            plan,
            None if in_order and not self.guided else pad(place_T, (0, plan.tokens - len(place_T)), value=self.total),
            column_T,
            candidates,
            fresh=cached is not None and (not cached.steady or self.followed),
            masks_outside_R=self._masks_outside(spans) if self.followed else None,
            hidden_T=hidden_T,
            whole=len(packed) == self.states * len(rows),
            first=first,
        )
        return pack if self.device.type == "cpu" else _uploaded(pack, self.device)

    def _plan(self, order: Sequence[int], spans: Sequence[tuple[int, int]], cached: Cached | None) -> Plan:
        """The rows, with guidance their copies, then null rows that no other row attends to, if packs are filled."""
        sampler, copies = self.rows[0].sampler, 2 if self.guided else 1
        attention, block, filled = sampler.attention, sampler.block_length, None
        starts = [spans[i][0] for i in order] * copies
        lengths = [self.computed[i] for i in order] * copies
        shadows = [(self.rows[i].begin, self.rows[i].shadows) for i in order]
        phases = [(spans[i][0] - self.rows[i].begin) % block for i in order] * copies
        if self.sizes is not None and not attention.clean_prefix:
            total, longest = sum(lengths), max(lengths)
            missing = bucket(total, LEAST_TOKENS, steps=4 if total > MANY_TOKENS else 2) - total
            whole, rest = divmod(missing, longest)
            null = [longest] * whole + ([rest] if rest else [])
            most_cached = 0 if cached is None else max(len(slots) for slots in cached.slots)
            filled = Filled(
                rows=self.sizes.grown("plan rows", len(lengths) + len(null)),
                length=bucket(longest, LEAST_ROW),
                cached=self.sizes.grown("cached", most_cached) if most_cached else 0,
            )
            lengths, (starts, phases) = lengths + null, (x + [0] * len(null) for x in (starts, phases))
        no_slots = torch.zeros(0, dtype=torch.long)  # copies and null rows read nothing
        return Plan(
            tuple(lengths),
            block if attention.causal and not attention.clean_prefix else None,
            starts=tuple(starts) if any(starts) else None,
            cached=cached and replace(cached, slots=(*cached.slots, *[no_slots] * (len(lengths) - len(order)))),
            clean=tuple(self.rows[i].begin - spans[i][0] for i in order) if attention.clean_prefix else None,
            filled=filled,
            phases=tuple(phases) if attention.from_prompt else None,
            shadows=tuple(shadows) if any(count for _, count in shadows) else None,
        )

    def _candidates(self, order: Sequence[int], spans: Sequence[tuple[int, int]]) -> Candidates:
        """The candidates of each row, and what a forward has to know of them."""
        rows, lengths = [self.rows[i] for i in order], [self.computed[i] for i in order]
        column_N = torch.cat(parts := [row.part()[1] for row in rows])
        counts, edits = [len(part) for part in parts], any(row.sampler.strategy.edits for row in rows)
        places = zip(order, rows, accumulate([0, *lengths]), accumulate([0, *counts]), strict=False)
        of_rows = [
            (
                *(i, start - spans[i][0], spans[i][0], self.offsets[i], row.answer_begin, first, row.editable_from),
                start + spans[i][1] - spans[i][0] - row.begin if row.shadows else start - spans[i][0],
            )
            for i, row, start, first in places
        ]
        table = torch.tensor(of_rows).repeat_interleave(torch.tensor(counts), dim=0).unbind(1)
        row_N, start_N, low_N, offset_N, answer_N, first_N, editable_from_N, shadow_N = table
        source_N = at_N = column_N + start_N
        slot_N = torch.arange(len(column_N)) - first_N
        if shift := rows[0].sampler.attention.predicts_next:  # but where the state before is not computed
            source_N = at_N - ((column_N > low_N) & (slot_N == 0 if shift == "first" else True)).long()
        return Candidates(
            at_N=at_N,
            source_N=source_N,
            copy_N=None,
            place_N=column_N + offset_N,
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - answer_N,
            slot_N=slot_N,
            editable_N=column_N >= editable_from_N if edits else None,
            shadow_N=column_N + shadow_N if any(row.shadows for row in rows) else None,
            width=max(*counts, 1),
            groups=self._groups(row_N),
        )

    def _groups(self, row_N: Tensor) -> list[Tensor]:
        """The indices of the candidates of each kind."""
        if len(set(self.kinds)) == 1:
            return [torch.arange(len(row_N))]
        kind_N = torch.tensor(self.kinds)[row_N]
        return [(kind_N == kind).nonzero()[:, 0] for kind in range(max(self.kinds) + 1)]

    def _filled(self, candidates: Candidates, tokens: int, sizes: Sizes) -> Candidates:
        """With candidates that are never open, of the last null row, at the last of the rows' ``tokens`` tokens."""
        missing = sizes.grown("candidates", len(candidates.at_N)) - len(candidates.at_N)
        null = {".at_N": tokens - 1, ".source_N": tokens - 1, ".place_N": self.total, ".row_N": self.slots - 1}
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


def _uploaded(pack: Pack, device: torch.device) -> Pack:
    """A pack with its tensors on the device, by one copy."""
    plan, tables = pack.plan, pack.plan.tables()
    record = [pack, plan.cached, list(tables.values())]
    pack, cached, there = uploaded(record, (Pack, Candidates, Cached), device)
    plan = replace(plan, cached=cached)
    plan.place(dict(zip(tables, there, strict=True)), device)
    return replace(pack, plan=plan)
