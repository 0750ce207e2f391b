"""The order in which a response came to be, from its trace: when each token was revealed, and how surely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

LEVELS = 10
"""Colours from first to last step, and from least to most sure."""
LAST_STEP = 1_000_000
"""No response takes more forward passes; an event beyond is damaged."""


class Write(NamedTuple):
    """A position's state before the one that stayed, from ``step`` (from 1) on. ``text`` is None where the position was
    masked again, and empty where the trace does not tell the token's text."""

    step: int
    text: str | None
    confidence: float | None


class Piece(NamedTuple):
    """One token of the response.

    ``step`` is the forward pass (from 1) that wrote the token that stayed, None where none did; ``level`` is its place
    on a scale of :data:`LEVELS` colours, ``sure`` that of its confidence; ``writes`` counts how often the position was
    written (more than once only where tokens are masked again or edited), and ``past`` tells what was there before.
    """

    text: str
    step: int | None
    confidence: float | None
    level: int
    writes: int
    sure: int = 0
    past: tuple[Write, ...] = ()


class Unmasking(NamedTuple):
    """A whole response: its pieces in reading order; ``steps`` is the last step that wrote anything; ``scale`` is what
    the least and the most sure colour mean (0 and 1, except for samplers whose confidence is no probability)."""

    pieces: list[Piece]
    steps: int
    remasked: int
    prompt_changes: int
    """Tokens written into masks inside the prompt; they are not among the pieces."""
    edited: int = 0
    """Tokens written over other tokens, with no mask between."""
    scale: tuple[float, float] = (0.0, 1.0)


def unmasking(trace: Mapping[str, Any]) -> Unmasking:
    """The order of one trace line of the schema. Positions outside the response and steps beyond :data:`LAST_STEP`,
    which a damaged trace may have, are ignored."""
    texts = trace["pieces"]
    step: list[int | None] = [None] * len(texts)
    confidence: list[float | None] = [None] * len(texts)
    token_at = [0] * len(texts)
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
        before = step[position]
        if before is not None:
            past.setdefault(position, []).append((before, token_at[position], confidence[position]))
        if op == "set":
            edited += before is not None
            writes[position] += 1
            step[position], token_at[position], confidence[position] = at, token, score
        elif before is not None:
            past[position].append((at, None, None))
            remasked += 1
            step[position] = confidence[position] = None
    lo, hi = _scale(confidence)
    pieces = [
        Piece(text, step[i], confidence[i], _level(step[i], last), writes[i], _sure(confidence[i], lo, hi))
        for i, text in enumerate(texts)
    ]
    known = token_texts(trace) if past else {}
    for position, states in past.items():
        told = (Write(at, None if token is None else known.get(token, ""), score) for at, token, score in states)
        pieces[position] = pieces[position]._replace(past=tuple(told))
    return Unmasking(pieces, last, remasked, prompt_changes, edited, (lo, hi))


_State = tuple[int, int | None, float | None]
"""(step, token or None for a mask, confidence)."""


def _events(trace: Mapping[str, Any]) -> Iterator[tuple[int, str, int, int, float | None]]:
    """The events, steps counted from 1."""
    return ((at + 1, *event) for at, *event in trace["events"] if at < LAST_STEP)


def token_texts(trace: Mapping[str, Any]) -> dict[int, str]:
    """The text of every token id in a trace line's events, as far as the line tells it: the tokens that stand in the
    response in the end, and with ``others`` (older lines have none) those that were written over or masked again."""
    pieces, final = trace["pieces"], dict[int, int]()
    for _step, op, position, token, _score in _events(trace):
        if op == "set" and 0 <= position < len(pieces):
            final[position] = token
        elif op == "remask":
            final.pop(position, None)
    known = {token: pieces[position] for position, token in final.items()}
    return known | {int(token): text for token, text in trace.get("others", {}).items()}


def _level(step: int | None, last: int) -> int:
    if step is None or last <= 1:
        return 0
    return (step - 1) * (LEVELS - 1) // (last - 1)


def _scale(confidence: list[float | None]) -> tuple[float, float]:
    known = [value for value in confidence if value is not None]
    lo, hi = min(known, default=0.0), max(known, default=1.0)
    return (0.0, 1.0) if lo >= 0 and hi <= 1.000001 else (lo, hi)


def _sure(value: float | None, lo: float, hi: float) -> int:
    if value is None or hi <= lo:
        return 0
    return min(int((value - lo) / (hi - lo) * LEVELS), LEVELS - 1)


@dataclass(frozen=True, slots=True)
class Fold:
    """Equal special tokens in a row (the end-of-text tokens that fill a response), shown as one: ``count`` of them."""

    text: str
    count: int
    first_step: int
    last_step: int
    pieces: tuple[Piece, ...] = field(default=(), compare=False, repr=False)


def folded(pieces: list[Piece], longest: int = 3) -> list[Piece | Fold]:
    """The pieces, with more than ``longest`` equal special tokens in a row put together after the first. Those that
    were not the first token at their position stay apart."""
    found: list[Piece | Fold] = []
    for (text, changed), group in groupby(pieces, key=lambda piece: (piece.text, bool(piece.past))):
        same = list(group)
        special = text.startswith(("<", "[")) and text.endswith((">", "]")) and not changed
        if len(same) <= longest or not special:
            found += same
            continue
        steps = [piece.step for piece in same[1:] if piece.step is not None]
        rest = tuple(same[1:])
        found += [same[0], Fold(text, len(rest), min(steps, default=0), max(steps, default=0), rest)]
    return found
