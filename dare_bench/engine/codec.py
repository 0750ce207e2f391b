"""Convert samples to journal records and back, and answers to the traces of files and pages. A record has the whole
answer, with its trajectory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from dare_bench.config import one_line
from dare_bench.errors import RunError
from dare_bench.runs.schema import Environment, Parts
from dare_bench.types import TIE, Generation, Likelihood, Request, Sample


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)


class _Session(_Record):
    session: int
    date: str
    held: int
    command: str


class _Program(_Record):
    program: str
    parts: Parts
    environment: Environment


class _Cost(_Record):
    session: int
    seconds: float
    generate_seconds: float = 0.0
    row_forwards: int
    slot_forwards: int
    forwards: int
    halvings: list[dict[str, int]]
    peak_memory_mb: float | None = None
    writer: str | None = None


class _Event(_Record):
    what: str


class _Keyed(_Record):
    """A sample, without its answer, or a failure."""

    key: str
    program: str = ""


_KINDS: dict[str, type[_Record]] = {
    "session": _Session, "program": _Program, "cost": _Cost, "event": _Event, "sample": _Keyed, "failure": _Keyed,
}  # fmt: skip


def is_record(value: Any) -> bool:
    """Is it a valid record, of a sample with its answer? Unknown types are valid; they have no readers."""
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    try:
        _KINDS.get(value["type"], _Record).model_validate(value)
        if value["type"] == "sample":
            to_answer(value)
    except (ValidationError, RunError):
        return False
    return True


def to_record(request: Request, answer: Generation | Likelihood, program: str = "") -> dict[str, Any]:
    """The journal record of a finished sample; ``program``: the digest of the program that answered."""
    record = _fields(request, "key", "kind", "task", "doc_id", "repeat", "seed")
    values = _fields(answer, *(field.name for field in fields(answer)))
    return {"type": "sample", **record, "program": program, "answer": values}


def failure_record(request: Request, error: str) -> dict[str, Any]:
    """The journal record of a failed request, which is tried again when the run is resumed."""
    return {"type": "failure", **_fields(request, "key", "task", "doc_id", "repeat"), "error": error}


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


_ANSWERS: dict[Any, TypeAdapter[Any]] = {"generate": TypeAdapter(Generation), "score": TypeAdapter(Likelihood)}


def to_answer(record: dict[str, Any], *, trajectory: bool = True) -> Generation | Likelihood:
    """The answer of a sample record, equal to the one written; ``trajectory=False`` leaves the events out. Raises
    RunError: the record is not valid; it was not written by dare-bench."""
    answer, kind = record.get("answer"), record.get("kind")
    if isinstance(answer, dict) and not trajectory:
        answer = {**answer, "trajectory": None}
    if isinstance(answer, dict) and isinstance(margin := answer.get("margin"), int | float):
        answer = {**answer, "near_tie": margin < TIE}  # older runs recorded the smallest change that turns a decision
    damaged = f"the journal's answer to {record.get('key')!r} is damaged"
    if not isinstance(kind, str) or kind not in _ANSWERS:
        raise RunError(f"{damaged}: its kind is {kind!r}; add --fresh for a new run")
    try:
        return _ANSWERS[kind].validate_python(answer)
    except ValidationError as error:
        raise RunError(f"{damaged}: {one_line(error, 'the answer')}; add --fresh for a new run") from error


def to_sample(record: dict[str, Any], request: Request) -> Sample:
    """The sample for ``request`` as the harness gets it; without events, which are large and which no scorer reads."""
    return Sample(request, to_answer(record, trajectory=False))


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
