"""The unmasking trace of a response, as files and pages hold it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from dare_bench.types import Generation

Piece = Callable[[int], str]
"""The text of one token."""


def piece_of(tokenizer: Any) -> Piece:
    """The text of a token; ``<id>`` without a tokenizer."""
    decode = getattr(tokenizer, "decode", None)
    return cache(lambda token: f"<{token}>" if decode is None else str(decode([token])))


def trace_of(answer: Generation, piece: Piece) -> dict[str, Any]:
    """The ``pieces`` of a response and the ``events`` that wrote them. Events after the response's end are left out,
    and so are the events' log probabilities."""
    events = [event for event in answer.trajectory or () if event.position < len(answer.tokens)]
    line = {"pieces": [piece(token) for token in answer.tokens], "events": [list(event[:5]) for event in events]}
    # Tokens that were overwritten, or written into the prompt, are in no piece; displays of the steps need their text.
    others = {e.token for e in events if e.position < 0 or answer.tokens[e.position] != e.token}
    return {**line, "others": {str(token): piece(token) for token in sorted(others)}} if others else line
