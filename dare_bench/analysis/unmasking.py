"""The order in which a response was unmasked, from its trace: the step and the confidence of each token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

LEVELS = 10
"""Number of colors from first to last step, and from lowest to highest confidence."""
WEIGHT_LEVELS = 5
"""Number of colors of positive weights, and of negative ones."""
LAST_STEP = 1_000_000
"""Upper bound of forward passes; events beyond it are damaged."""


class Write(NamedTuple):
    """An earlier state of a position, from ``step`` (from 1) on. ``text`` is None where the position was masked again,
    and empty where the trace does not have the token's text."""

    step: int
    text: str | None
    confidence: float | None


class Piece(NamedTuple):
    """One token of the response.

    ``step`` is the forward pass (from 1) that wrote the final token, None if none did; ``level`` is its color out of
    :data:`LEVELS`, ``sure`` that of its confidence. ``writes`` counts the writes to the position (more than one only
    where tokens are masked again or edited), and ``past`` are its earlier states. ``weight`` is the token's weight in
    an update of reinforcement learning and ``weight_level`` its color (see :func:`with_weights`).
    """

    text: str
    step: int | None
    confidence: float | None
    level: int
    writes: int
    sure: int = 0
    past: tuple[Write, ...] = ()
    weight: float | None = None
    weight_level: int = 0


class Unmasking(NamedTuple):
    """A response: its pieces in reading order; ``steps`` is the last step that wrote a token; ``scale`` is the range of
    confidence of the colors (0 to 1, except for samplers whose confidence is not a probability)."""

    pieces: list[Piece]
    steps: int
    remasked: int
    prompt_changes: int
    """Tokens written into masks inside the prompt; they are not among the pieces."""
    edited: int = 0
    """Tokens written over other tokens, with no mask between."""
    scale: tuple[float, float] = (0.0, 1.0)


def unmasking(trace: Mapping[str, Any]) -> Unmasking:
    """The order of one trace line. Positions outside the response and steps beyond :data:`LAST_STEP`, as in damaged
    traces, are ignored."""
    texts = trace["pieces"]
    now: list[_State | None] = [None] * len(texts)
    writes = [0] * len(texts)
    past: dict[int, list[_State]] = {}
    remasked = edited = prompt_changes = last = 0
    for at, op, position, token, score in _events(trace):
        last = max(last, at)
        if position < 0:
            prompt_changes += op == "set"
            continue
        if position >= len(texts) or op not in ("set", "remask"):
            continue
        before = now[position]
        if before is not None:
            past.setdefault(position, []).append(before)
        if op == "set":
            edited += before is not None
            writes[position] += 1
            now[position] = (at, token, score)
        elif before is not None:
            past[position].append((at, None, None))
            remasked += 1
            now[position] = None
    lo, hi = _confidence_range([state[2] for state in now if state is not None])
    pieces = []
    for text, state, count in zip(texts, now, writes, strict=True):
        step, _, sure = state or (None, None, None)
        pieces.append(Piece(text, step, sure, _step_level(step, last), count, _confidence_level(sure, lo, hi)))
    texts_by_id = token_texts(trace) if past else {}
    for position, states in past.items():
        earlier = (
            Write(at, None if token is None else texts_by_id.get(token, ""), score) for at, token, score in states
        )
        pieces[position] = pieces[position]._replace(past=tuple(earlier))
    return Unmasking(pieces, last, remasked, prompt_changes, edited, (lo, hi))


def with_weights(order: Unmasking, weights: Sequence[float], heaviest: float) -> Unmasking:
    """The response with the weight of each token in an update. The color of a weight is its sign times a level of 1 to
    :data:`WEIGHT_LEVELS`, by its share of ``heaviest``, the largest absolute weight; 0 for a weight of 0."""
    pieces = [
        piece._replace(weight=weight, weight_level=_weight_level(weight, heaviest))
        for piece, weight in zip(order.pieces, weights, strict=True)
    ]
    return order._replace(pieces=pieces)


def _weight_level(weight: float, heaviest: float) -> int:
    if not weight:
        return 0
    return int(math.copysign(min(WEIGHT_LEVELS, 1 + int(WEIGHT_LEVELS * abs(weight) / heaviest)), weight))


_State = tuple[int, int | None, float | None]
"""(step, token or None for a mask, confidence)."""


def _events(trace: Mapping[str, Any]) -> Iterator[tuple[int, str, int, int, float | None]]:
    return ((at + 1, *event) for at, *event in trace["events"] if at < LAST_STEP)


def token_texts(trace: Mapping[str, Any]) -> dict[int, str]:
    """The text of the token ids in a trace line's events, as far as it is recorded: the tokens of the final response,
    and with ``others`` (not in older lines) those that were edited or masked again."""
    final_texts = {token: trace["pieces"][position] for position, token in final_tokens(trace).items()}
    return final_texts | {int(token): text for token, text in trace.get("others", {}).items()}


def final_tokens(trace: Mapping[str, Any]) -> dict[int, int]:
    """The token id that the events of a trace line leave at each position of the response that is not masked."""
    final = dict[int, int]()
    for _step, op, position, token, _score in trace["events"]:
        if op == "set" and 0 <= position < len(trace["pieces"]):
            final[position] = token
        elif op == "remask":
            final.pop(position, None)
    return final


def _step_level(step: int | None, last: int) -> int:
    if step is None or last <= 1:
        return 0
    return (step - 1) * (LEVELS - 1) // (last - 1)


def _confidence_range(confidence: list[float | None]) -> tuple[float, float]:
    values = [value for value in confidence if value is not None]
    lo, hi = min(values, default=0.0), max(values, default=1.0)
    return (0.0, 1.0) if lo >= 0 and hi <= 1.000001 else (lo, hi)


def _confidence_level(value: float | None, lo: float, hi: float) -> int:
    if value is None or hi <= lo:
        return 0
    return min(int((value - lo) / (hi - lo) * LEVELS), LEVELS - 1)


@dataclass(frozen=True, slots=True)
class Fold:
    """A run of ``count`` equal special tokens (end-of-text tokens that fill a response), shown as one."""

    text: str
    count: int
    first_step: int
    last_step: int
    pieces: tuple[Piece, ...] = field(default=(), compare=False, repr=False)


def folded(pieces: list[Piece], longest: int = 3) -> list[Piece | Fold]:
    """The pieces, with more than ``longest`` equal special tokens in a row folded after the first. Tokens with earlier
    states, or with a weight, are not folded."""
    result: list[Piece | Fold] = []
    for (text, changed), group in groupby(pieces, key=lambda piece: (piece.text, bool(piece.past or piece.weight))):
        first, *rest = group
        special = text.startswith(("<", "[")) and text.endswith((">", "]")) and not changed
        if len(rest) < longest or not special:
            result += [first, *rest]
            continue
        steps = [piece.step for piece in rest if piece.step is not None]
        result += [first, Fold(text, len(rest), min(steps, default=0), max(steps, default=0), tuple(rest))]
    return result
