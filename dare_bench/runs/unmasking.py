"""The order in which a response came to be, from its trace: when each token was revealed, and how surely."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

LEVELS = 10
"""Colours from first to last step."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of the response.

    ``step`` is the forward pass (from 1) that wrote the token that stayed, None where none did; ``level`` is its place
    on a scale of :data:`LEVELS` colours; ``writes`` counts how often the position was written (more than once only
    where tokens are masked again or edited).
    """

    text: str
    step: int | None
    confidence: float | None
    level: int
    writes: int


@dataclass(frozen=True, slots=True)
class Unmasking:
    """A whole response: its pieces in reading order; ``steps`` is the last step that wrote anything."""

    pieces: list[Piece]
    steps: int
    remasked: int
    prompt_changes: int
    """Tokens written into masks inside the prompt; they are not among the pieces."""


def unmasking(trace: Mapping[str, Any]) -> Unmasking:
    """The order of one trace line. Positions outside the response, which a damaged trace may hold, are ignored."""
    texts = [str(text) for text in trace.get("pieces", ())]
    step: list[int | None] = [None] * len(texts)
    confidence: list[float | None] = [None] * len(texts)
    writes = [0] * len(texts)
    remasked = prompt_changes = last = 0
    for at, op, position, _token, score in trace.get("events", ()):
        last = max(last, int(at) + 1)
        if position < 0:
            prompt_changes += op == "set"
        elif position < len(texts):
            if op == "set":
                step[position], confidence[position] = int(at) + 1, score
                writes[position] += 1
            elif op == "remask":
                step[position] = confidence[position] = None
                remasked += 1
    pieces = [Piece(text, step[i], confidence[i], _level(step[i], last), writes[i]) for i, text in enumerate(texts)]
    return Unmasking(pieces, last, remasked, prompt_changes)


def _level(step: int | None, last: int) -> int:
    if step is None or last <= 1:
        return 0
    return (step - 1) * (LEVELS - 1) // (last - 1)


@dataclass(frozen=True, slots=True)
class Fold:
    """Equal special tokens in a row (the end-of-text tokens that fill a response), shown as one: ``count`` of them."""

    text: str
    count: int
    first_step: int
    last_step: int


def folded(pieces: list[Piece], longest: int = 3) -> list[Piece | Fold]:
    """The pieces, with more than ``longest`` equal special tokens in a row put together after the first."""
    found: list[Piece | Fold] = []
    for text, group in groupby(pieces, key=lambda piece: piece.text):
        same = list(group)
        special = text.startswith(("<", "[")) and text.endswith((">", "]"))
        if len(same) <= longest or not special:
            found += same
            continue
        steps = [piece.step for piece in same[1:] if piece.step is not None]
        found += [same[0], Fold(text, len(same) - 1, min(steps, default=0), max(steps, default=0))]
    return found
