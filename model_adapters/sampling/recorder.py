"""What is recorded of each forward: events, the responses that it predicts, and what published samplers would count.
There is no recorder where nothing is.

Shape letters: N open positions, T tokens of the canvases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal

import torch

from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.records import Decision, Positions
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.types import Event


@dataclass(frozen=True)
class Recorder:
    """Observes forwards after the fact: leaves what is recorded with the rows, of which tables have ``slots``."""

    rows: Sequence[RowState]
    slots: int
    traced: bool
    predicted: bool
    carried: bool

    @classmethod
    def of(cls, rows: Sequence[RowState], slots: int) -> Recorder | None:
        traced = any(row.sampler.record_trajectory for row in rows)
        predicted = any(row.sampler.record_predictions for row in rows)
        carried = any(row.sampler.reference.count == "carry" for row in rows)
        return cls(rows, slots, traced, predicted, carried) if traced or predicted or carried else None

    def observe(self, device: DeviceState, positions: Positions, decision: Decision) -> None:
        """After a forward whose decision is written."""
        last = [0] * self.slots if device.drafts is None else device.drafts.last_F.tolist()
        if self.predicted:
            self._predict(device, positions, decision, last)
        if self.traced:
            self._record(device, positions, decision, last)
        if self.carried:
            self._count_rejected(device, positions.masks_left(decision).tolist())

    def _predict(self, device: DeviceState, positions: Positions, decision: Decision, last: Sequence[int]) -> None:
        """The responses that this forward predicts: every open mask takes its proposed token."""
        predicted_T = (device.canvas_T if device.drafts is None else device.drafts.decided_T).clone()
        predicted_T[positions.place_N] = torch.where(positions.masked_N, decision.token_N, positions.current_N)
        lengths = [len(row.canvas) for row in self.rows]
        states = predicted_T.cpu().split(len(predicted_T) * self.slots // len(device.key_R))
        for state, canvases in enumerate(states):
            for i, (row, canvas) in enumerate(zip(self.rows, canvases[: sum(lengths)].split(lengths), strict=True)):
                if row.sampler.record_predictions and state <= last[i]:
                    row.predictions.append(row.response_in(canvas))

    def _record(self, device: DeviceState, positions: Positions, decision: Decision, last: Sequence[int]) -> None:
        """The events of this forward."""
        where = decision.written_N & ((decision.token_N != device.mask_id) | ~positions.masked_N)
        rows, columns = positions.row_N[where].tolist(), positions.position_N[where].tolist()
        logprob_N = torch.zeros_like(decision.confidence_N) if decision.logprob_N is None else decision.logprob_N
        tables = (decision.token_N, decision.confidence_N, logprob_N)
        values = (table_N[where].tolist() for table_N in tables)
        # A row that writes has counted this forward.
        forwards = (device.forward_R - 1 if device.drafts is None else device.drafts.forward_R).tolist()
        for i, column, token, confidence, logprob in zip(rows, columns, *values, strict=True):
            state, slot = divmod(i, self.slots)
            row = self.rows[slot]
            if row.sampler.record_trajectory and state <= last[slot]:
                op: Literal["set", "remask"] = "remask" if token == device.mask_id else "set"
                drawn = None if isnan(logprob) else logprob
                row.events.append(Event(forwards[i], op, column, token, round(confidence, 6), drawn))

    def _count_rejected(self, device: DeviceState, masks_R: Sequence[int]) -> None:
        for row, step, masks in zip(self.rows, device.step_R.tolist(), masks_R, strict=False):  # then null rows
            if step == row.sampler.strategy.planned(row.sampler.block_length):
                row.rejected += masks
