"""Recorded trajectories: their events, and the canvases that they went through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
