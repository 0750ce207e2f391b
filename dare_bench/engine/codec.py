"""Samples as journal records and back. A record holds everything of an answer, its trajectory too."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from dare_bench.types import Event, Generation, Likelihood, Request, Sample


def to_record(request: Request, answer: Generation | Likelihood) -> dict[str, Any]:
    """The journal record of a finished sample."""
    return {
        "type": "sample",
        "key": request.key,
        "kind": request.kind,
        "task": request.task,
        "doc_id": request.doc_id,
        "repeat": request.repeat,
        "seed": request.seed,
        "answer": {item.name: getattr(answer, item.name) for item in fields(answer)},
    }


def failure_record(request: Request, error: str) -> dict[str, Any]:
    """The journal record of a request that got no answer; it is asked again when the run is resumed."""
    return {
        "type": "failure",
        "key": request.key,
        "task": request.task,
        "doc_id": request.doc_id,
        "repeat": request.repeat,
        "error": error,
    }


def to_answer(record: dict[str, Any], *, trajectory: bool = True) -> Generation | Likelihood:
    """The answer of a sample record, equal to the one written; ``trajectory=False`` leaves the events out."""
    kind = Generation if record["kind"] == "generate" else Likelihood
    known = {item.name for item in fields(kind)}
    values = {name: value for name, value in record["answer"].items() if name in known}
    if kind is Generation:
        events = values.get("trajectory")
        values["trajectory"] = [Event(*event) for event in events] if trajectory and events is not None else None
    return kind(**values)


def to_sample(record: dict[str, Any], request: Request) -> Sample:
    """The sample for ``request`` as the harness gets it, without events: they are big, and no scorer reads them."""
    return Sample(request, to_answer(record, trajectory=False))
