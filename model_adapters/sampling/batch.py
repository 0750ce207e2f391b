"""The rows of a batch on the host: what their turns are given, and what is read back.

Shape letters: T packed tokens, R rows, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling import reference
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.model_adapters.sampling.packing import Packer
from dare_bench.model_adapters.sampling.pages import PagePool
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.step import StepState, TurnResult
from dare_bench.model_adapters.sampling.ties import NearTies, first_end
from dare_bench.types import Event


class BatchState(StepState):
    """The active rows, whose canvases and counters are on the device. The rows are fixed: a new batch is built when a
    row enters or leaves. The input of a forward is a :class:`Pack`, rebuilt whenever a window moves."""

    def __init__(
        self,
        rows: Iterable[RowState],
        mask_id: int,
        device: torch.device,
        store: KVStore | None = None,
        pool: PagePool | None = None,
        sizes: Sizes | None = None,
    ) -> None:
        rows = sorted(rows, key=lambda row: len(row.canvas))
        samplers = [row.sampler for row in rows]
        kinds = list({sampler.decision: sampler for sampler in samplers}.values())
        self.device, self.lengths = device, [len(row.canvas) for row in rows]
        self.replayed = any(sampler.replays for sampler in samplers)
        noised = any(sampler.uniform_noise for sampler in samplers)
        static = all(sampler.strategy.static for sampler in kinds) and not self.replayed and not noised
        self.sizes = sizes if static else None
        """If packs are filled with null rows and tokens."""
        self.slots = self._grown("rows", len(rows))
        """Rows of the tables on the device; the last ones are null rows."""
        super().__init__(kinds, mask_id, **self._tables(rows, kinds), rows=rows, noised=noised)
        for i in range(len(rows)):
            self._set_schedule(i)
        self.score_T = self._scores()
        if any(sampler.record_near_tie for sampler in samplers):
            self.ties = self._ties()
        kind_numbers = None if self.sizes is None else self.kind_R.tolist()[: len(rows)]
        self.packer = Packer(rows, device, store, pool, kind_numbers, self.slots, self.sizes)
        self.tokens_done = 0
        self.traced = any(sampler.record_trajectory for sampler in samplers)
        self.predicted = any(sampler.record_predictions for sampler in samplers)
        self.carried = any(sampler.reference.count == "carry" for sampler in samplers)
        self.stopped_in_block = [i for i, s in enumerate(samplers) if s.stopping.stop_in_block and s.stopping.eos_ids]
        self.followed = any(row.cache.follows_canvas for row in rows)
        self.look_in = 0  # turns until the host looks; 0: to be computed
        self.turns = 0
        self.end_turns = {i: row.end_turn - row.turn for i, row in enumerate(rows) if row.end_turn is not None}
        """By row, the turns of this batch after which the row ends."""

    def _tables(self, rows: list[RowState], kinds: list[Sampler]) -> dict[str, Any]:
        """The tensors of :class:`StepState`, by name."""
        samplers = [row.sampler for row in rows]
        kind_of = {sampler.decision: i for i, sampler in enumerate(kinds)}
        canvas_T = torch.cat([row.canvas for row in rows])
        return {
            "canvas_T": pad(canvas_T, (0, self._grown("canvas", len(canvas_T)) - len(canvas_T))).to(self.device),
            "kind_R": self._by_row(kind_of[sampler.decision] for sampler in samplers),
            "prompt_R": self._by_row(len(row.prompt) for row in rows),
            "key_R": self._by_row(row.key for row in rows),
            "turn_R": self._by_row(row.turn for row in rows),
            "step_R": self._by_row(row.step for row in rows),
            "post_steps_R": self._by_row(row.post_steps for row in rows),
            "begin_R": self._by_row(row.begin for row in rows),
            "limit_R": self._by_row(row.limit for row in rows),
            "deterministic_R": self._by_row((not sampler.draws for sampler in samplers), torch.bool),
            "scale_R": self._by_row((sampler.attention.cfg_scale for sampler in samplers), torch.float32),
            "schedule_RS": torch.zeros((self.slots, 1), dtype=torch.long, device=self.device),
            "going_R": self._by_row((True for _ in rows), torch.bool),
            "finite": torch.ones((), dtype=torch.bool, device=self.device),
        }

    def _scores(self) -> Tensor | None:
        """``score_T``."""
        if all(row.scores is None for row in self.rows):
            return None
        none_T = torch.full((sum(self.lengths),), float("inf"), dtype=torch.float64)
        parts = zip(self.rows, none_T.split(self.lengths), strict=True)
        score_T = torch.cat([part if row.scores is None else row.scores for row, part in parts])
        return pad(score_T, (0, len(self.canvas_T) - len(score_T)), value=float("inf")).to(self.device)

    def _ties(self) -> NearTies:
        samplers = [row.sampler for row in self.rows]
        cut = (not s.strategy.edits and (s.stopping.early_stop or s.stopping.cut_at_eos) for s in samplers)
        ends = (first_end(row.canvas[len(row.prompt) :].tolist(), row.sampler.stopping.eos_ids) for row in self.rows)
        return NearTies(
            eos_ids=tuple(sorted({token for sampler in samplers for token in sampler.stopping.eos_ids})),
            near_R=self._by_row((row.near_tie for row in self.rows), torch.bool),
            cut_R=self._by_row(cut, torch.bool),
            end_R=self._by_row(ends),
        )

    def _grown(self, name: str, size: int) -> int:
        """A size with room for at least one null entry, if they are used."""
        return size if self.sizes is None else self.sizes.grown(name, size + 1)

    def _by_row(self, values: Iterable[float], dtype: torch.dtype = torch.long) -> Tensor:
        """A value for each row, then zeros for the null rows: [R]."""
        value_R = torch.tensor(list(values), dtype=dtype)
        return pad(value_R, (0, self.slots - len(value_R))).to(self.device)

    def _set_schedule(self, i: int) -> None:
        """Write row i's schedule into the table; nothing is due after its end."""
        schedule = [*self.rows[i].schedule, 0]
        if len(schedule) > self.schedule_RS.shape[1]:
            size = self._grown("schedule", len(schedule))
            self.schedule_RS = pad(self.schedule_RS, (0, size - self.schedule_RS.shape[1]))
        self.schedule_RS[i].zero_()
        self.schedule_RS[i, : len(schedule)] = torch.tensor(schedule, dtype=torch.long)

    def _next_look(self) -> int:
        """Turns after which the host looks which blocks are finished; at once, if positions are listed on the host."""
        return 1 if self.packer.kinds is None else min(row.least_turns() for row in self.rows)

    def prepare(self) -> None:
        """On the host, before a turn: pack the rows, if their windows have moved."""
        if self.replayed or (self.followed and self.pack is None):
            self.sync()
        if self.pack is not None:
            return
        if not self.look_in:
            self.look_in = self._next_look()
        self.pack = self.packer.pack()
        self.tokens_done = self.pack.plan.tokens

    def finish(self, step: TurnResult) -> list[int]:
        """On the host, after a turn: records, the cache, and the rows whose block is finished, if the host looks.

        Raises:
            ModelOutputError: NaN or infinite logits since the host has last looked.
        """
        pack = self.pack
        assert pack is not None
        if self.predicted:
            self._predict(step)
        if self.traced:
            self._record(step)
        if self.carried:
            reference.count_rejected(self.rows, self.step_R, step.outcome.masks_R)
        self.packer.committed(pack)
        if pack.fresh:
            self.pack = None
            for row in self.rows:  # windows of cached blocks depend on whether a row is at its first forward
                row.opened = True
        self.turns += 1
        self.look_in -= 1
        return [] if self.look_in > 0 else self._look(step)

    def _look(self, step: TurnResult) -> list[int]:
        """The rows whose block is finished; waits for the device."""
        self.look_in = 1
        finite, *going = torch.cat([self.finite[None], self.going_R]).tolist()
        if not finite:
            raise ModelOutputError(
                "the network gave NaN or infinite logits; logits must be finite: check the weights (dare-bench "
                "validate) and the dtype"
            )
        done = [i for i, goes_on in enumerate(going[: len(self.rows)]) if not goes_on]
        return sorted({*done, *self._stopped(step)}) if self.stopped_in_block else done

    def abandon(self) -> None:
        """The turn failed: its pack is built again."""
        if self.pack is not None:
            self.packer.abandoned(self.pack)
            self.pack = None

    def _predict(self, step: TurnResult) -> None:
        """Record the responses that this forward predicts: every open mask takes its proposed token."""
        positions = step.positions
        predicted_T = self.canvas_T.clone()
        predicted_T[step.place_N] = torch.where(positions.masked_N, step.decision.token_N, positions.current_N)
        for row, canvas in zip(self.rows, self._split(predicted_T), strict=True):
            if row.sampler.record_predictions:
                row.predictions.append(row.response_in(canvas))

    def _record(self, step: TurnResult) -> None:
        """Record the events of this forward."""
        decision, positions = step.decision, step.positions
        where = decision.written_N & ((decision.token_N != self.mask_id) | ~positions.masked_N)
        rows, columns = positions.row_N[where].tolist(), positions.position_N[where].tolist()
        tables = (decision.token_N, decision.confidence_N, decision.logprob_N)
        values = (table_N[where].tolist() for table_N in tables)
        turns = (self.turn_R - 1).tolist()  # a row that writes has counted this turn
        for i, column, token, confidence, logprob in zip(rows, columns, *values, strict=True):
            if self.rows[i].sampler.record_trajectory:
                op: Literal["set", "remask"] = "remask" if token == self.mask_id else "set"
                drawn = None if isnan(logprob) else logprob
                self.rows[i].events.append(Event(turns[i], op, column, token, round(confidence, 6), drawn))

    def ended(self) -> list[int]:
        """The rows that end here, whether their blocks are finished or not."""
        return [i for i, turns in self.end_turns.items() if turns <= self.turns]

    def _stopped(self, step: TurnResult) -> list[int]:
        """Rows with an EOS without masks before it, which this forward has written (LLaDA2 generate, eos_early_stop)
        or, with ``stop_when_filled``, an earlier one (Fast-dLLM v2 generate)."""
        stopped = []
        canvases = self._split(self.canvas_T)
        for i in self.stopped_in_block:
            row = self.rows[i]
            eos_ids = set(row.sampler.stopping.eos_ids)
            new = step.decision.token_N[step.decision.written_N & (step.positions.row_N == i)].tolist()
            block = canvases[i][row.first_response : row.stop].tolist()
            end = next((k for k, token in enumerate(block) if token in eos_ids), None)
            is_new = row.sampler.stopping.stop_when_filled or eos_ids.intersection(new)
            if end is not None and is_new and self.mask_id not in block[:end]:
                stopped.append(i)
        return stopped

    def sync(self) -> None:
        """Copy canvases and counters to the rows on the host."""
        tables = (self.step_R, self.turn_R, self.post_steps_R)
        counters, canvases = (table.tolist()[: len(self.rows)] for table in tables), self._split(self.canvas_T)
        for row, canvas, *counts in zip(self.rows, canvases, *counters, strict=True):
            row.canvas, (row.step, row.turn, row.post_steps) = canvas, counts
        if self.score_T is not None:
            for row, scores in zip(self.rows, self._split(self.score_T), strict=True):
                row.scores = None if row.scores is None else scores
        if self.ties is not None:
            for row, near in zip(self.rows, self.ties.near_R.tolist(), strict=False):  # then null rows
                row.near_tie = near
        if self.soft is not None:
            self.soft.sync(self.rows)

    def _split(self, x_T: Tensor) -> tuple[Tensor, ...]:
        """The part of each row, on the host: a copy, since a frame's tensors serve other rows later."""
        return x_T[: sum(self.lengths)].to("cpu", copy=True).split(self.lengths)

    def enter_block(self, i: int) -> None:
        """Row i has moved to another block."""
        row = self.rows[i]
        self.step_R[i], self.post_steps_R[i], self.going_R[i] = row.step, 0, True
        self.begin_R[i], self.limit_R[i] = row.begin, row.limit
        self._set_schedule(i)
        self.pack, self.look_in, self.soft = None, 0, None
