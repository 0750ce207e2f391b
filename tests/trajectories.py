"""Trajectories of samplers, compared, and open positions of a forward, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.types import Event, Generation


def canvas_before(events: Sequence[Event], step: int, length: int, mask_id: int) -> list[int]:
    """The response as the forward ``step`` saw it, ``length`` tokens."""
    canvas = [mask_id] * length
    for event in events:
        if event.step < step:
            canvas[event.position] = event.token
    return canvas


class Close(float):
    """A number that equals others within 1e-4."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(self - other) <= 1e-4


def close_events(answer: Generation) -> list[tuple[Any, ...]]:
    """All of the events of an answer, equal to others where probabilities differ by the rounding of sums alone."""
    assert answer.trajectory is not None
    close = ((e.confidence, e.logprob) for e in answer.trajectory)
    return [
        (*event[:4], *(None if x is None else Close(x) for x in values))
        for event, values in zip(answer.trajectory, close, strict=True)
    ]


MASK = 99


def open_positions(rows: Sequence[int], quota: Sequence[int] = (1,), **values: Any) -> Positions:
    """Positions of these rows, in their columns from 0 on, at the first step; ``values`` replace others."""
    row_N = torch.tensor(rows, dtype=torch.long)
    slots = [rows[:i].count(row) for i, row in enumerate(rows)]
    zero_R, column_N = torch.zeros(len(quota), dtype=torch.long), torch.arange(len(row_N))
    fields = {
        "row_N": row_N,
        "column_N": column_N,
        "position_N": column_N,
        "place_N": column_N,
        "slot_N": torch.tensor(slots, dtype=torch.long),
        "width": max(slots, default=0) + 1,
        "mask_id": MASK,
        "current_N": torch.full_like(row_N, -1),
        "masked_N": torch.ones_like(row_N, dtype=torch.bool),
        "key_R": zero_R,
        "step_R": zero_R,
        "forward_R": zero_R,
        "quota_R": torch.tensor(quota, dtype=torch.long),
        "begin_R": zero_R,
        "limit_R": zero_R + 1,
        "deterministic_R": zero_R == 0,
        "post_steps_R": zero_R,
        "lengths": [len(row_N)] * len(quota),
    }
    return Positions(**{**fields, **values})
