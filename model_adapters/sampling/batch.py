"""The state of decoding a batch of rows, on the device: one turn of all of them.

Shape letters: T packed tokens, R rows, N open positions, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import isnan
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.sampling import reference
from dare_bench.model_adapters.sampling.attention import Candidates, Pack, Packer
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.model_adapters.sampling.decide import Decision, decide
from dare_bench.model_adapters.sampling.guidance import GuidedCopies
from dare_bench.model_adapters.sampling.pages import PagePool
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.strategies import TurnOutcome
from dare_bench.model_adapters.sampling.tokens import OpenPositions
from dare_bench.model_adapters.sampling.uniform import SoftPredictions, with_noise
from dare_bench.types import Event


@dataclass(frozen=True)
class Step:
    """What a turn did on the device: the decision at ``positions``, whose places in the canvases are ``place_N``."""

    place_N: Tensor
    positions: OpenPositions
    decision: Decision
    outcome: TurnOutcome


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
        sizes: Sizes | None = None,
    ) -> None:
        self.rows = sorted(rows, key=lambda row: len(row.canvas))
        self.mask_id, self.device = mask_id, device
        self.lengths = [len(row.canvas) for row in self.rows]
        offsets = [0, *accumulate(self.lengths)][:-1]
        self.score_T = self._scores()
        samplers = [row.sampler for row in self.rows]
        self.kinds = list({sampler.decision: sampler for sampler in samplers}.values())
        """One sampler of each group of rows that decide together."""
        kind_of = {sampler.decision: i for i, sampler in enumerate(self.kinds)}
        kinds = [kind_of[sampler.decision] for sampler in samplers]
        self.replayed = any(sampler.replays for sampler in samplers)
        self.noised = any(sampler.uniform_noise for sampler in samplers)
        static = sizes is not None and not self.replayed and not self.noised
        static = static and all(sampler.strategy.static for sampler in self.kinds)
        self.guided = any(sampler.attention.cfg_scale > 0 for sampler in samplers)
        self.sizes = sizes if static and not self.guided else None
        """If packs are filled with null rows and tokens."""
        self.slots = self._grown("rows", len(self.rows))
        """Rows of the tables on the device; the last ones are null rows."""
        canvas_T = torch.cat([row.canvas for row in self.rows])
        self.canvas_T = pad(canvas_T, (0, self._grown("canvas", len(canvas_T)) - len(canvas_T))).to(device)
        self.kind_R = self._by_row(kinds)
        self.offsets = offsets
        self.soft: SoftPredictions | None = None
        self.packer = Packer(self.rows, offsets, device, store, pool, kinds if static else None, self.slots, self.sizes)
        self.pack: Pack | None = None
        self.copies: GuidedCopies | None = None
        self.tokens_done = 0
        self.prompt_R = self._by_row(len(row.prompt) for row in self.rows)
        self.key_R = self._by_row(row.key for row in self.rows)
        self.turn_R = self._by_row(row.turn for row in self.rows)
        self.step_R = self._by_row(row.step for row in self.rows)
        self.post_steps_R = self._by_row(row.post_steps for row in self.rows)
        self.begin_R = self._by_row(row.begin for row in self.rows)
        self.limit_R = self._by_row(row.limit for row in self.rows)
        self.margin_R = self._by_row((row.margin for row in self.rows), torch.float64)
        self.schedule_RS = torch.zeros((self.slots, 1), dtype=torch.long, device=device)
        for i in range(len(self.rows)):
            self._set_schedule(i)
        self.deterministic_R = self._by_row((not sampler.draws for sampler in samplers), torch.bool)
        self.traced = any(sampler.record_trajectory for sampler in samplers)
        self.predicted = any(sampler.record_predictions for sampler in samplers)
        self.shifted = any(sampler.attention.predicts_next for sampler in samplers)
        self.carried = any(sampler.reference.count == "carry" for sampler in samplers)
        self.stopped_in_block = [i for i, s in enumerate(samplers) if s.stopping.stop_in_block and s.stopping.eos_ids]
        self.edited = any(sampler.strategy.edits for sampler in samplers)
        self.margins = any(sampler.record_margin for sampler in samplers)
        self.followed = any(row.cache.follows_canvas for row in self.rows)
        self.going_R = self._by_row((True for _ in self.rows), torch.bool)
        """False for rows whose block is finished, which wait unchanged until the host looks."""
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self.look_in = 0  # turns until the host looks; 0: to be computed
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
        row_T = torch.arange(len(self.rows)).repeat_interleave(torch.tensor(self.lengths))
        self.row_T = pad(row_T, (0, len(self.canvas_T) - len(row_T)), value=self.slots - 1).to(self.device)
        begin_R = self._by_row(accumulate([0, *self.lengths[:-1]])) + self.prompt_R
        self.response_T = self.place_T >= begin_R[self.row_T]
        eos_ids = sorted({token for sampler in samplers for token in sampler.stopping.eos_ids})
        self.eos_V = torch.tensor(eos_ids, dtype=torch.long, device=self.device)
        cut = (not s.strategy.edits and (s.stopping.early_stop or s.stopping.cut_at_eos) for s in samplers)
        self.cut_R = self._by_row(cut, torch.bool)

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

    def groups(self, positions: OpenPositions) -> list[Tensor]:
        """The indices of the positions that each of ``kinds`` decides."""
        if self.pack is not None and self.pack.candidates is not None:
            return self.pack.candidates.groups
        return [(self.kind_R[positions.row_N] == i).nonzero()[:, 0] for i in range(len(self.kinds))]

    def prepare(self) -> None:
        """On the host, before a turn: pack the rows, if their windows have moved."""
        if self.pack is not None:
            return
        if not self.look_in:
            self.look_in = self._next_look()
        if self.followed:
            self.sync()
        self.pack = self.packer.pack()
        self.copies = GuidedCopies(self.rows, self.pack, self.mask_id, self.device) if self.guided else None
        self.tokens_done = (self.copies.plan if self.copies else self.pack.plan).tokens

    def step(self, network: Any) -> Step:
        """On the device: a forward, the decision, and what it writes. With static shapes this has no host
        synchronization, and takes and changes tensors of the batch alone.

        A forward that fails leaves canvases and cache unchanged.
        """
        logits_NV, place_N, positions = self.forward(network)
        soft_ND = None
        if self.soft is not None:
            soft_ND = self.soft.predicted(network, logits_NV, positions, self.kinds, self.groups(positions))
        decision = decide(self, logits_NV, positions)
        self.write(place_N, positions, decision, soft_ND)
        token_N = torch.where(decision.written_N, decision.token_N, positions.current_N)
        return Step(place_N, positions, decision, self.count(positions, decision, token_N))

    def forward(self, network: Any) -> tuple[Tensor, Tensor, OpenPositions]:
        """Logits that predict the open positions [N, V], their indices in ``canvas_T`` [N], and the positions."""
        pack = self.pack
        assert pack is not None
        tokens_T = self.canvas_T if pack.index_T is None else self.canvas_T[pack.index_T]
        if pack.candidates is None:
            source_N, place_N, positions = self._listed(pack, tokens_T)
        else:
            source_N, place_N, positions = self._planned(pack.candidates, tokens_T)
        logits_NV = self._logits(network, pack, tokens_T, source_N)
        if self.score_T is not None:
            positions = replace(positions, score_N=self.score_T[place_N])
        return logits_NV, place_N, positions

    def _logits(self, network: Any, pack: Pack, tokens_T: Tensor, source_N: Tensor) -> Tensor:
        """Logits at the packed tokens ``source_N``, [N, V]."""
        if self.copies is not None:
            return self.copies.logits(network, tokens_T, source_N)
        given: dict[str, Tensor] = {}
        if self.noised:
            tokens_T = with_noise(self, pack, tokens_T, tokens_T == self.mask_id, network.arch.vocab)
        if getattr(network, "conditions", False):
            self.soft = self.soft or SoftPredictions(self.rows, self.offsets, network, self.device)
            given["soft"] = self.soft.of(pack)
        logits_NV: Tensor = network(tokens_T, pack.column_T, pack.plan, logits_at=source_N, **given).logits
        return logits_NV

    def _listed(self, pack: Pack, tokens_T: Tensor) -> tuple[Tensor, Tensor, OpenPositions]:
        """The tokens whose states predict the open positions, the places of these in the canvases, and the positions:
        as many as are open now, which the host has to know."""
        masked_T = tokens_T == self.mask_id
        open_T = masked_T & pack.fillable_T
        if pack.editable_T is not None:
            open_T |= pack.editable_T
        open_N = open_T.nonzero()[:, 0]
        row_N, column_N = pack.row_T[open_N], pack.column_T[open_N]
        positions = self._open(
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - self.prompt_R[row_N],
            current_N=tokens_T[open_N],
            masked_N=masked_T[open_N],
        )
        source_N = open_N - pack.shift_T[open_N] if self.shifted else open_N
        return source_N, open_N if pack.index_T is None else pack.index_T[open_N], positions

    def _planned(self, candidates: Candidates, tokens_T: Tensor) -> tuple[Tensor, Tensor, OpenPositions]:
        """As :meth:`_listed`, of all positions that may be open while the pack serves: their number is fixed."""
        c, current_N = candidates, tokens_T[candidates.at_N]
        masked_N = current_N == self.mask_id
        open_N = masked_N if c.editable_N is None else masked_N | c.editable_N
        positions = self._open(
            row_N=c.row_N,
            column_N=c.column_N,
            position_N=c.position_N,
            current_N=current_N,
            masked_N=masked_N,
            live_N=open_N & self.going_R[c.row_N],
            slot_N=c.slot_N,
            width=c.width,
        )
        return c.source_N, c.place_N, positions

    def _open(self, **positions: Any) -> OpenPositions:
        step_R = self.step_R.clamp(max=self.schedule_RS.shape[1] - 1)
        return OpenPositions(
            **positions,
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
        """Write a decision into the canvases, keep the smallest margins if requested, and the predictions ``soft_ND``
        that the next forward is conditioned on."""
        if self.soft is not None and soft_ND is not None:
            self.soft.soft_TD[place_N] = soft_ND
        self.finite &= decision.finite
        if self.margins:  # before the canvas changes: margins count only for rows that are not settled
            counted_R = torch.where(self._settled(), float("inf"), decision.margin_R)
            self.margin_R.copy_(torch.minimum(self.margin_R, counted_R))
        if self.score_T is not None:
            new_N = decision.written_N & positions.masked_N
            self.score_T[place_N] = torch.where(new_N, decision.score_N.double(), self.score_T[place_N])
        self.canvas_T[place_N] = torch.where(decision.written_N, decision.token_N, positions.current_N)

    def _settled(self) -> Tensor:
        """Rows whose answer ends at an EOS without masks before it: without editing, no later choice changes it."""
        never = self.canvas_T.shape[0]
        ends_T = torch.isin(self.canvas_T, self.eos_V) & self.response_T
        masks_T = (self.canvas_T == self.mask_id) & self.response_T
        first_end_R, first_mask_R = (
            torch.full_like(self.key_R, never).scatter_reduce_(
                0, self.row_T, torch.where(here_T, self.place_T, never), "amin"
            )
            for here_T in (ends_T, masks_T)
        )
        return self.cut_R & (first_end_R < first_mask_R)

    def count(self, positions: OpenPositions, decision: Decision, token_N: Tensor) -> TurnOutcome:
        """Count the forward, and note which blocks are finished. ``token_N``: the tokens at the positions now."""
        assert self.pack is not None
        self.step_R += self.going_R
        self.turn_R += self.going_R
        outcome = TurnOutcome(
            step_R=self.step_R,
            limit_R=self.limit_R,
            deterministic_R=self.deterministic_R,
            post_steps_R=self.post_steps_R,
            positions=positions,
            token_N=token_N,
            mask_id=self.mask_id,
            masks_outside_R=self.pack.masks_outside_R if self.followed else 0,
            ended_R=decision.ended_R,
        )
        if self.edited:
            self.post_steps_R += outcome.full_R & self.going_R
        done_R = self.kinds[0].strategy.finished(outcome)
        for i, sampler in enumerate(self.kinds[1:], 1):
            done_R = torch.where(self.kind_R == i, sampler.strategy.finished(outcome), done_R)
        self.going_R &= ~done_R
        return outcome

    def finish(self, step: Step) -> list[int]:
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

    def _look(self, step: Step) -> list[int]:
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

    def _predict(self, step: Step) -> None:
        """Record the responses that this forward predicts: every open mask takes its proposed token."""
        positions = step.positions
        predicted_T = self.canvas_T.clone()
        predicted_T[step.place_N] = torch.where(positions.masked_N, step.decision.token_N, positions.current_N)
        for row, canvas in zip(self.rows, self._split(predicted_T), strict=True):
            if row.sampler.record_predictions:
                row.predictions.append(row.response_in(canvas))

    def _record(self, step: Step) -> None:
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

    def _stopped(self, step: Step) -> list[int]:
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
        tables = (self.step_R, self.turn_R, self.post_steps_R, self.margin_R)
        counters, canvases = (table.tolist()[: len(self.rows)] for table in tables), self._split(self.canvas_T)
        for row, canvas, *counts in zip(self.rows, canvases, *counters, strict=True):
            row.canvas, (row.step, row.turn, row.post_steps, row.margin) = canvas, counts
        if self.score_T is not None:
            for row, scores in zip(self.rows, self._split(self.score_T), strict=True):
                row.scores = None if row.scores is None else scores
        if self.soft is not None:
            self.soft.sync(self.rows)

    def _split(self, x_T: Tensor) -> tuple[Tensor, ...]:
        """The part of each row, on the host."""
        return x_T.cpu()[: sum(self.lengths)].split(self.lengths)

    def enter_block(self, i: int) -> None:
        """Row i has moved to another block."""
        row = self.rows[i]
        self.step_R[i], self.post_steps_R[i], self.going_R[i] = row.step, 0, True
        self.begin_R[i], self.limit_R[i] = row.begin, row.limit
        self._set_schedule(i)
        self.pack, self.look_in, self.soft = None, 0, None
