"""The state of decoding: a row's on the host, a batch's on the device.

Shape letters: T packed tokens, R rows, N open positions, S steps of a block.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Literal

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling import reference
from dare_bench.model_adapters.sampling.attention import CachePolicy, Pack, Packer
from dare_bench.model_adapters.sampling.decide import Decision
from dare_bench.model_adapters.sampling.guidance import GuidedCopies
from dare_bench.model_adapters.sampling.pages import PagePool, RowPages
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies import TurnOutcome
from dare_bench.model_adapters.sampling.tokens import OpenPositions
from dare_bench.model_adapters.sampling.uniform import SoftPredictions, with_noise
from dare_bench.types import Event


@dataclass(eq=False)
class RowState:
    """The state of a row. ``canvas`` is prompt and response, int64 [L]; columns count from the first prompt token.

    ``given``, ``start_step``, ``start_turn`` and ``end_turn``: as ``canvas``, ``start_step``, ``start_turn`` and
    ``end_turn`` of a request.
    """

    prompt: Sequence[int]
    sampler: Sampler
    key: int
    mask_id: int
    tag: Any = None
    """Any value that the caller wants back with the finished row."""
    tokenizer: Any = None
    """Needed only to stop early at stop strings."""
    generator: torch.Generator | None = None
    """The published code's own stream, where it is replayed."""
    given: Sequence[int] | None = None
    start_step: int = 0
    start_turn: int = 0
    end_turn: int | None = None
    weights_version: int = 0
    """Of the network, when the row started."""
    canvas: Tensor = field(init=False)
    block: int = -1
    step: int = 0
    turn: int = field(init=False)
    """Forward turns so far (a guided pair is one), counted from ``start_turn``."""
    opened: bool = False
    """Has the block had its first forward here, which fills an approximate cache?"""
    post_steps: int = 0
    """Forwards so far on a block without masks (editing)."""
    done_blocks: int = 0
    extra_forwards: int = 0
    """Forwards of the published code that are skipped here."""
    schedule: list[int] = field(default_factory=list)
    """Positions due in each forward of the block, as the strategy planned them."""
    scores: Tensor | None = None
    """If the strategy remasks: the score with which each token was written, float64 [L]; inf where it was given."""
    memory: Any = None
    """What a strategy that remembers keeps of the block."""
    soft: Tensor | None = None
    """Where a network is conditioned on it: what the last forward predicted for the block, [block_length, D]."""
    noise: Tensor | None = None
    """The published code's random tokens for the block's next forward, if they are replayed."""
    pages: RowPages = field(default_factory=RowPages)
    """The row's slots in the cache."""
    margin: float = float("inf")
    events: list[Event] = field(default_factory=list)
    predictions: list[list[int]] = field(default_factory=list)
    stopped: bool = False
    cut: bool = False
    """Has ``end_turn`` ended the row before it was finished?"""
    started: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        written = [*self.prompt, *(self.given or ())]
        masks = self.sampler.canvas_length(len(self.prompt)) - len(written)
        self.canvas = torch.tensor([*written, *[self.mask_id] * masks], dtype=torch.long)
        self.turn = self.start_turn
        if self.sampler.strategy.remasks:
            self.scores = torch.full((len(self.canvas),), float("inf"), dtype=torch.float64)

    @property
    def begin(self) -> int:
        """The first column of the block."""
        return self.sampler.origin(len(self.prompt)) + self.block * self.sampler.block_length

    @property
    def stop(self) -> int:
        return self.begin + self.sampler.block_length

    @property
    def low(self) -> int:
        """The first column whose mask may be filled: masks of the prompt may, where attention is not causal."""
        return self.begin if self.sampler.attention.causal else 0

    @property
    def first_response(self) -> int:
        """The first column of the block after the prompt."""
        return max(self.begin, len(self.prompt))

    @property
    def opens_by_state_before(self) -> bool:
        """Does the next forward predict the block's first token, from the state before it?"""
        is_first = not self.opened and bool(self.canvas[self.begin] == self.mask_id)
        return self.sampler.attention.predicts_next and is_first

    @property
    def limit(self) -> int:
        """Maximum number of turns of the current block."""
        return self.sampler.strategy.limit(self.sampler.block_length, self.schedule)

    @property
    def cache(self) -> CachePolicy:
        return self.sampler.attention.cache

    def window(self) -> tuple[int, int]:
        """The columns that the next forward computes."""
        return self.cache.window(self)

    def open_columns(self) -> Tensor:
        """Columns of the window that may change: masks up to the block's end, and the block's tokens if the strategy
        edits; int64 [n]."""
        low, high = self.window()
        column = torch.arange(max(low, self.low), min(high, self.stop))
        is_open = self.canvas[column] == self.mask_id
        return column[is_open | (column >= self.first_response)] if self.sampler.strategy.edits else column[is_open]

    @property
    def turns(self) -> int:
        """Forward turns that were made here."""
        return self.turn - self.start_turn

    def response(self) -> list[int]:
        return self.response_in(self.canvas)

    def response_in(self, canvas: Tensor) -> list[int]:
        """The ``gen_length`` tokens after the prompt."""
        p = len(self.prompt)
        return canvas[p : p + self.sampler.gen_length].tolist()

    def next_block(self, vocab: int) -> bool:
        """Enter the next block that has masks; False when the row is finished."""
        sampler, p = self.sampler, len(self.prompt)
        while True:
            if self.block >= 0:
                self.done_blocks += 1
                reference.leave_block(self, vocab)
                done = self.canvas[p : min(self.stop, p + sampler.gen_length)].tolist()
                if sampler.stopping.is_final(done, self.mask_id, self.tokenizer):
                    self.stopped = True
                    return False
            self.block, self.step, self.post_steps, self.opened = self.block + 1, 0, 0, False
            self.soft = self.noise = None
            if self.begin >= len(self.canvas):
                return False
            masked = self.canvas == self.mask_id
            masks, before = int(masked[self.begin : self.stop].sum()), int(masked[self.low : self.begin].sum())
            if sampler.strategy.remembers:
                self.memory = sampler.strategy.remember(masked[self.first_response : self.stop].tolist())
            if masks and self.start_step:
                self._go_on(masks, before)
                return True
            schedule = sampler.strategy.schedule(masks, before, sampler.block_length)
            self.schedule = reference.scheduled_forwards(self, schedule)
            if masks:
                return True

    def _go_on(self, masks: int, before: int) -> None:
        """Enter a block after its first ``start_step`` forwards. Steps of the schedule with nothing due are no
        forwards; the last forward writes what the others leave."""
        strategy, length = self.sampler.strategy, self.sampler.block_length
        made, self.start_step = self.start_step, 0
        due = [i for i, n in enumerate(strategy.schedule(self.stop - self.first_response, before, length)) if n]
        first = due[made - 1] + 1 if made <= len(due) else made
        left = reference.scheduled_forwards(self, strategy.schedule(masks, before, length, first))
        if due:
            left = left or [0]
            left[-1] += max(0, masks - sum(left))
        self.step, self.schedule = made, [*[0] * made, *left]


class BatchState:
    """The concatenated canvases of the active rows, and their counters. The rows are fixed: a new batch is built when a
    row enters or leaves. The input of a forward is a :class:`Pack`, rebuilt whenever a window moves."""

    def __init__(
        self,
        rows: Iterable[RowState],
        mask_id: int,
        device: torch.device,
        store: KVStore | None = None,
        pool: PagePool | None = None,
    ) -> None:
        self.rows = sorted(rows, key=lambda row: len(row.canvas))
        self.mask_id, self.device = mask_id, device
        self.lengths = [len(row.canvas) for row in self.rows]
        offsets = [0, *accumulate(self.lengths)][:-1]
        self.canvas_T = torch.cat([row.canvas for row in self.rows]).to(device)
        self.score_T = self._scores()
        self.offsets = offsets
        self.packer = Packer(self.rows, offsets, device, store, pool)
        self.pack: Pack | None = None
        self.copies: GuidedCopies | None = None
        self.tokens_done = 0
        self.prompt_R = self._ints(len(row.prompt) for row in self.rows)
        self.key_R = self._ints(row.key for row in self.rows)
        self.turn_R = self._ints(row.turn for row in self.rows)
        self.step_R = self._ints(row.step for row in self.rows)
        self.post_steps_R = self._ints(row.post_steps for row in self.rows)
        self.begin_R = self._ints(row.begin for row in self.rows)
        self.limit_R = self._ints(row.limit for row in self.rows)
        self.margin_R = torch.tensor([row.margin for row in self.rows], dtype=torch.float64, device=device)
        self.schedule_RS = torch.zeros((len(self.rows), 1), dtype=torch.long, device=device)
        for i in range(len(self.rows)):
            self._set_schedule(i)
        samplers = [row.sampler for row in self.rows]
        self.kinds = list({sampler.decision: sampler for sampler in samplers}.values())
        """One sampler of each group of rows that decide together."""
        kind_of = {sampler.decision: i for i, sampler in enumerate(self.kinds)}
        self.kind_R = self._ints(kind_of[sampler.decision] for sampler in samplers)
        self.deterministic_R = self._bools(not sampler.draws for sampler in samplers)
        self.traced = any(sampler.record_trajectory for sampler in samplers)
        self.predicted = any(sampler.record_predictions for sampler in samplers)
        self.replayed = any(sampler.replays for sampler in samplers)
        self.shifted = any(sampler.attention.predicts_next for sampler in samplers)
        self.guided = any(sampler.attention.cfg_scale > 0 for sampler in samplers)
        self.carried = any(sampler.reference.count == "carry" for sampler in samplers)
        self.stopped_in_block = [i for i, s in enumerate(samplers) if s.stopping.stop_in_block and s.stopping.eos_ids]
        self.noised = any(sampler.uniform_noise for sampler in samplers)
        self.soft: SoftPredictions | None = None
        self.margins = any(sampler.record_margin for sampler in samplers)
        self.followed = any(row.cache.follows_canvas for row in self.rows)
        self.turns = 0
        self.end_turns = {i: row.end_turn - row.turn for i, row in enumerate(self.rows) if row.end_turn is not None}
        """By row, the turns of this batch after which the row ends."""
        if self.margins:
            self._watch_ends(samplers)

    def _scores(self) -> Tensor | None:
        """The scores with which tokens were written, beside ``canvas_T``; None if no strategy remasks."""
        if all(row.scores is None for row in self.rows):
            return None
        none_T = torch.full((sum(self.lengths),), float("inf"), dtype=torch.float64)
        parts = zip(self.rows, none_T.split(self.lengths), strict=True)
        return torch.cat([part if row.scores is None else row.scores for row, part in parts]).to(self.device)

    def _watch_ends(self, samplers: Sequence[Sampler]) -> None:
        """Tensors for :meth:`_settled`."""
        self.place_T = torch.arange(len(self.canvas_T), device=self.device)
        self.row_T = torch.repeat_interleave(self._ints(self.lengths))
        begin_R = self._ints(accumulate([0, *self.lengths[:-1]])) + self.prompt_R
        self.response_T = self.place_T >= begin_R[self.row_T]
        self.eos_V = self._ints({token for sampler in samplers for token in sampler.stopping.eos_ids})
        self.cut_R = self._bools(
            not s.strategy.edits and (s.stopping.early_stop or s.stopping.cut_at_eos) for s in samplers
        )

    def _ints(self, values: Iterable[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.long, device=self.device)

    def _bools(self, values: Iterable[bool]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.bool, device=self.device)

    def _set_schedule(self, i: int) -> None:
        """Write row i's schedule into the table; nothing is due after its end."""
        schedule = [*self.rows[i].schedule, 0]
        missing = len(schedule) - self.schedule_RS.shape[1]
        if missing > 0:
            self.schedule_RS = torch.nn.functional.pad(self.schedule_RS, (0, missing))
        self.schedule_RS[i].zero_()
        self.schedule_RS[i, : len(schedule)] = torch.tensor(schedule, dtype=torch.long)

    def forward(self, network: Any) -> tuple[Tensor, Tensor, OpenPositions]:
        """Logits that predict the open positions [N, V], their indices in ``canvas_T`` [N], and the positions.

        A forward that fails leaves canvases and cache unchanged.
        """
        if self.pack is None:
            if self.followed:
                self.sync()
            self.pack = self.packer.pack()
            self.copies = GuidedCopies(self.rows, self.pack, self.mask_id, self.device) if self.guided else None
        pack = self.pack
        self.tokens_done = (self.copies.plan if self.copies else pack.plan).tokens
        tokens_T = self.canvas_T if pack.index_T is None else self.canvas_T[pack.index_T]
        masked_T = tokens_T == self.mask_id
        open_T = masked_T & pack.fillable_T
        if pack.editable_T is not None:
            open_T |= pack.editable_T
        open_N = open_T.nonzero()[:, 0]
        try:
            logits_NV = self._logits(network, pack, tokens_T, open_N)
        except BaseException:
            self.packer.abandoned(pack)
            self.pack = None
            raise
        self.packer.committed(pack)
        place_N = open_N if pack.index_T is None else pack.index_T[open_N]
        positions = self._open(pack, open_N, tokens_T[open_N], masked_T[open_N])
        if self.score_T is not None:
            positions = replace(positions, score_N=self.score_T[place_N])
        return logits_NV, place_N, positions

    def _logits(self, network: Any, pack: Pack, tokens_T: Tensor, open_N: Tensor) -> Tensor:
        """Logits that predict the open positions, [N, V]."""
        source_N = open_N - pack.shift_T[open_N] if self.shifted else open_N
        if self.copies is not None:
            return self.copies.logits(network, tokens_T, source_N)
        given = {}
        if self.noised:
            tokens_T = with_noise(self, pack, tokens_T, tokens_T == self.mask_id, network.arch.vocab)
        if getattr(network, "conditions", False):
            self.soft = self.soft or SoftPredictions(self.rows, self.offsets, network, self.device)
            given["soft"] = self.soft.of(pack)
        return network(tokens_T, pack.column_T, pack.plan, logits_at=source_N, **given).logits

    def soft_of(self, network: Any, logits_NV: Tensor, positions: OpenPositions) -> Tensor | None:
        """What the next forward is conditioned on, [N, D]; None for networks that are not."""
        if self.soft is None:
            return None
        kinds = [(sampler, self.kind_R == i) for i, sampler in enumerate(self.kinds)]
        return self.soft.predicted(network, logits_NV, positions, kinds)

    def _open(self, pack: Pack, open_N: Tensor, current_N: Tensor, masked_N: Tensor) -> OpenPositions:
        row_N, column_N = pack.row_T[open_N], pack.column_T[open_N]
        step_R = self.step_R.clamp(max=self.schedule_RS.shape[1] - 1)
        return OpenPositions(
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - self.prompt_R[row_N],
            current_N=current_N,
            masked_N=masked_N,
            key_R=self.key_R,
            step_R=self.step_R,
            turn_R=self.turn_R,
            quota_R=self.schedule_RS.gather(1, step_R[:, None])[:, 0],
            begin_R=self.begin_R,
            lengths=self.lengths,
            memories=[row.memory for row in self.rows],
        )

    def write(
        self, place_N: Tensor, positions: OpenPositions, decision: Decision, soft_ND: Tensor | None = None
    ) -> None:
        """Write a decision into the canvases, keep what :meth:`soft_of` gave, and record margins, predictions and
        events if requested."""
        if self.soft is not None and soft_ND is not None:
            self.soft.soft_TD[place_N] = soft_ND
        if self.margins:  # before the canvas changes: margins count only for rows that are not settled
            counted_R = torch.where(self._settled(), float("inf"), decision.margin_R)
            self.margin_R = torch.minimum(self.margin_R, counted_R)
        if self.predicted:
            self._predict(place_N, positions, decision)
        if self.score_T is not None:
            new_N = decision.written_N & positions.masked_N
            self.score_T[place_N] = torch.where(new_N, decision.score_N.double(), self.score_T[place_N])
        self.canvas_T[place_N] = torch.where(decision.written_N, decision.token_N, positions.current_N)
        if self.traced:
            self._record(positions, decision)

    def _settled(self) -> Tensor:
        """Rows whose answer ends at an EOS without masks before it: without editing, no later choice changes it."""
        never = self.canvas_T.shape[0]
        ends_T = torch.isin(self.canvas_T, self.eos_V) & self.response_T
        masks_T = (self.canvas_T == self.mask_id) & self.response_T
        first_end_R, first_mask_R = (
            torch.full_like(self.key_R, never).scatter_reduce_(0, self.row_T[here_T], self.place_T[here_T], "amin")
            for here_T in (ends_T, masks_T)
        )
        return self.cut_R & (first_end_R < first_mask_R)

    def _predict(self, place_N: Tensor, positions: OpenPositions, decision: Decision) -> None:
        """Record the responses that this forward predicts: every open mask takes its proposed token."""
        predicted_T = self.canvas_T.clone()
        predicted_T[place_N] = torch.where(positions.masked_N, decision.token_N, positions.current_N)
        for row, canvas in zip(self.rows, predicted_T.cpu().split(self.lengths), strict=True):
            if row.sampler.record_predictions:
                row.predictions.append(row.response_in(canvas))

    def _record(self, positions: OpenPositions, decision: Decision) -> None:
        where = decision.written_N & ((decision.token_N != self.mask_id) | ~positions.masked_N)
        rows, columns = positions.row_N[where].tolist(), positions.position_N[where].tolist()
        tables = (decision.token_N, decision.confidence_N, decision.logprob_N)
        values = (table_N[where].tolist() for table_N in tables)
        turns = self.turn_R.tolist()
        for i, column, token, confidence, logprob in zip(rows, columns, *values, strict=True):
            if self.rows[i].sampler.record_trajectory:
                op: Literal["set", "remask"] = "remask" if token == self.mask_id else "set"
                self.rows[i].events.append(Event(turns[i], op, column, token, round(confidence, 6), logprob))

    def advance(self, positions: OpenPositions, decision: Decision) -> list[int]:
        """Count the step; returns the rows whose block it finished."""
        rows, pack = len(self.rows), self.pack
        assert pack is not None
        if pack.fresh:
            self.pack = None
            for row in self.rows:  # windows of cached blocks depend on whether a row is at its first forward
                row.opened = True
        self.turns += 1
        self.step_R += 1
        self.turn_R += 1
        current_N = torch.where(decision.written_N, decision.token_N, positions.current_N)
        inside_N = (current_N == self.mask_id) & (positions.column_N >= self.begin_R[positions.row_N])
        masks_R = torch.bincount(positions.row_N[inside_N], minlength=rows) + pack.masks_outside_R
        changed_R = torch.bincount(positions.row_N[current_N != positions.current_N], minlength=rows)
        full_R = torch.bincount(positions.row_N[positions.masked_N], minlength=rows) == 0
        self.post_steps_R += full_R.long()
        outcome = TurnOutcome(
            step_R=self.step_R,
            limit_R=self.limit_R,
            masks_R=masks_R,
            full_R=full_R,
            changed_R=changed_R,
            deterministic_R=self.deterministic_R,
            post_steps_R=self.post_steps_R,
            ended_R=decision.ended_R,
        )
        done_R = self.kinds[0].strategy.finished(outcome)
        for i, sampler in enumerate(self.kinds[1:], 1):
            done_R = torch.where(self.kind_R == i, sampler.strategy.finished(outcome), done_R)
        if self.carried:
            reference.count_rejected(self.rows, self.step_R, masks_R)
        done = done_R.nonzero()[:, 0].tolist()
        return sorted({*done, *self._stopped(positions, decision)}) if self.stopped_in_block else done

    def ended(self) -> list[int]:
        """The rows that end here, whether their blocks are finished or not."""
        return [i for i, turns in self.end_turns.items() if turns <= self.turns]

    def _stopped(self, positions: OpenPositions, decision: Decision) -> list[int]:
        """Rows with an EOS without masks before it, which this forward has written (LLaDA2 generate, eos_early_stop)
        or, with ``stop_when_filled``, an earlier one (Fast-dLLM v2 generate)."""
        stopped = []
        canvases = self.canvas_T.split(self.lengths)
        for i in self.stopped_in_block:
            row = self.rows[i]
            eos_ids = set(row.sampler.stopping.eos_ids)
            new = decision.token_N[decision.written_N & (positions.row_N == i)].tolist()
            block = canvases[i][row.first_response : row.stop].tolist()
            end = next((k for k, token in enumerate(block) if token in eos_ids), None)
            is_new = row.sampler.stopping.stop_when_filled or eos_ids.intersection(new)
            if end is not None and is_new and self.mask_id not in block[:end]:
                stopped.append(i)
        return stopped

    def sync(self) -> None:
        """Copy canvases and counters to the rows on the host."""
        canvases = self.canvas_T.cpu().split(self.lengths)
        counters = (table.tolist() for table in (self.step_R, self.turn_R, self.post_steps_R, self.margin_R))
        for row, canvas, *counts in zip(self.rows, canvases, *counters, strict=True):
            row.canvas, (row.step, row.turn, row.post_steps, row.margin) = canvas, counts
        if self.score_T is not None:
            for row, scores in zip(self.rows, self.score_T.cpu().split(self.lengths), strict=True):
                row.scores = None if row.scores is None else scores
        if self.soft is not None:
            self.soft.sync(self.rows)

    def enter_block(self, i: int) -> None:
        """Row i has moved to another block."""
        row = self.rows[i]
        self.step_R[i], self.post_steps_R[i] = row.step, 0
        self.begin_R[i], self.limit_R[i] = row.begin, row.limit
        self._set_schedule(i)
        self.pack = self.soft = None
