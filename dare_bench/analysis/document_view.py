"""One document of a run, arranged for showing: who was asked what, what came back, what it scored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from dare_bench.analysis.unmasking import Unmasking, unmasking
from dare_bench.runs.index import Document


@dataclass(frozen=True, slots=True)
class AnswerView:
    """One request and its answer. ``text`` is the response (generate) or the continuation that was scored.

    ``record`` is the ``dare_bench`` entry of the request; empty where the file has none.
    """

    index: int
    repeat: int
    prompt: str
    text: str
    settings: Mapping[str, Any]
    record: Mapping[str, Any]
    order: Unmasking | None
    value: float | None = None
    best: bool = False
    gold: bool = False


@dataclass(frozen=True, slots=True)
class FilterResult:
    """What one filter made of the answers, and the scores that gave."""

    filter: str
    filtered: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentView:
    task: str
    doc_id: int | str
    kind: Literal["generate", "score"]
    target: str
    answers: list[AnswerView]
    verdicts: list[FilterResult]

    @property
    def prompts(self) -> list[str]:
        """The exact prompts, each once."""
        return list(dict.fromkeys(answer.prompt for answer in self.answers))


def document_view(document: Document) -> DocumentView:
    """Arrange a document. Fields that a file lacks, or has in another shape, are shown empty rather than refused."""
    first = document.rows[0]
    arguments = [_mapping(argument) for argument in _mapping(first.get("arguments")).values()]
    responses = _list(first.get("resps"))
    scored = not any(isinstance(argument.get("arg_1"), Mapping) for argument in arguments)
    records = _records(document.answers)
    answers: list[AnswerView] = []
    for index, argument in enumerate(arguments):
        repeats = responses[index] if index < len(responses) and isinstance(responses[index], list) else []
        for repeat, response in enumerate(repeats):
            record = records.get((index, repeat), {})
            answers.append(_answer(index, repeat, argument, response, record, scored, document.traces))
    target = str(first.get("target", ""))
    return DocumentView(
        document.task,
        document.doc_id,
        "score" if scored else "generate",
        target,
        _marked(answers, target) if scored else answers,
        [
            FilterResult(str(row.get("filter", "")), _shown(row.get("filtered_resps")), {
                str(name): row.get(str(name)) for name in _list(row.get("metrics"))
            })
            for row in document.rows
        ],
    )  # fmt: skip


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _records(answers: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Records by (request index, repeat), which their keys end in; else by their order."""
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for place, record in enumerate(answers):
        parts = str(record.get("key", "")).rsplit("/", 3)
        numbered = len(parts) == 4 and all(part.isdecimal() and len(part) < 10 for part in parts[1:3])
        found[(int(parts[1]), int(parts[2])) if numbered else (place, 0)] = record
    return found


def _answer(
    index: int,
    repeat: int,
    argument: Mapping[str, Any],
    response: Any,
    record: Mapping[str, Any],
    scored: bool,
    traces: Mapping[str, Mapping[str, Any]],
) -> AnswerView:
    prompt = _shown(argument.get("arg_0", ""))
    if scored:
        text = _shown(argument.get("arg_1", ""))
        return AnswerView(index, repeat, prompt, text, {}, record, None, value=_value(response, record))
    trace = traces.get(str(record.get("trace_ref")))
    order = unmasking(trace) if trace else None
    settings = _mapping(argument.get("arg_1"))
    return AnswerView(index, repeat, prompt, _shown(response), settings, record, order)


def _value(response: Any, record: Mapping[str, Any]) -> float | None:
    """The log-likelihood: from the record, else from lm-eval's ["-1.5", "False"]."""
    said = response[0] if isinstance(response, list) and response else response
    for found in (record.get("value"), said):
        if isinstance(found, (int, float, str)):
            with suppress(ValueError, OverflowError):
                number = float(found)
                if not math.isnan(number):
                    return number
    return None


def _marked(answers: list[AnswerView], target: str) -> list[AnswerView]:
    """Choices with the likeliest and the right one marked; the target is a choice's number or its text."""
    if len(answers) < 2:
        return answers
    known = [answer.value for answer in answers if answer.value is not None]
    top = max(known) if known else None
    return [
        replace(
            answer,
            best=top is not None and answer.value == top,
            gold=target.strip() in (str(at), answer.text.strip()),
        )
        for at, answer in enumerate(answers)
    ]


def _shown(value: Any, depth: int = 0) -> str:
    """A filtered response as text: one alone without its brackets."""
    if isinstance(value, str):
        return value
    if value is None or depth > 20:
        return ""
    if isinstance(value, list):
        if len(value) == 1:
            return _shown(value[0], depth + 1)
        turns = bool(value) and all(isinstance(turn, dict) and "role" in turn for turn in value)
        return ("\n\n" if turns else ", ").join(_shown(part, depth + 1) for part in value)
    if isinstance(value, dict) and set(value) == {"role", "content"}:
        return f"[{value['role']}]\n{_shown(value['content'], depth + 1)}"
    return str(value)
