"""What is recorded of each forward: events, and the responses that it predicts. There is no recorder where neither is.

Shape letters: N open positions, R rows, T tokens of the canvases.
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
    """Observes forwards after the fact: leaves events and predictions with the rows that record them."""

    rows: Sequence[RowState]
    traced: bool
    predicted: bool

    @classmethod
    def of(cls, rows: Sequence[RowState]) -> Recorder | None:
        traced = any(row.sampler.record_trajectory for row in rows)
        predicted = any(row.sampler.record_predictions for row in rows)
        return cls(rows, traced, predicted) if traced or predicted else None

    def observe(self, device: DeviceState, positions: Positions, decision: Decision) -> None:
        """After a forward whose decision is written."""
        if self.predicted:
            self._predict(device, positions, decision)
        if self.traced:
            self._record(device, positions, decision)

    def _predict(self, device: DeviceState, positions: Positions, decision: Decision) -> None:
        """The responses that this forward predicts: every open mask takes its proposed token."""
        predicted_T = device.canvas_T.clone()
        predicted_T[positions.place_N] = torch.where(positions.masked_N, decision.token_N, positions.current_N)
        lengths = [len(row.canvas) for row in self.rows]
        canvases = predicted_T[: sum(lengths)].cpu().split(lengths)
        for row, canvas in zip(self.rows, canvases, strict=True):
            if row.sampler.record_predictions:
                row.predictions.append(row.response_in(canvas))

    def _record(self, device: DeviceState, positions: Positions, decision: Decision) -> None:
        """The events of this forward."""
        where = decision.written_N & ((decision.token_N != device.mask_id) | ~positions.masked_N)
        rows, columns = positions.row_N[where].tolist(), positions.position_N[where].tolist()
        tables = (decision.token_N, decision.confidence_N, decision.logprob_N)
        values = (table_N[where].tolist() for table_N in tables)
        turns = (device.turn_R - 1).tolist()  # a row that writes has counted this forward
        for i, column, token, confidence, logprob in zip(rows, columns, *values, strict=True):
            if self.rows[i].sampler.record_trajectory:
                op: Literal["set", "remask"] = "remask" if token == device.mask_id else "set"
                drawn = None if isnan(logprob) else logprob
                self.rows[i].events.append(Event(turns[i], op, column, token, round(confidence, 6), drawn))
