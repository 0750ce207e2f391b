"""One document of a run, arranged for display: prompts, answers, filters, scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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
    """The output of one filter and its scores."""

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
    filter_results: list[FilterResult]

    @property
    def prompts(self) -> list[str]:
        """The exact prompts, each once."""
        return list(dict.fromkeys(answer.prompt for answer in self.answers))


def document_view(document: Document) -> DocumentView:
    """Arrange a document of an index, whose lines follow the schema."""
    first = document.rows[0]
    scored = not any(isinstance(argument.get("arg_1"), Mapping) for argument in first["arguments"].values())
    answers = list(_answers(document, scored))
    return DocumentView(
        document.task,
        document.doc_id,
        "score" if scored else "generate",
        first["target"],
        _marked_choices(answers, first["target"]) if scored else answers,
        [
            FilterResult(row["filter"], _text(row["filtered_resps"]), {name: row.get(name) for name in row["metrics"]})
            for row in document.rows
        ],
    )


def _records(answers: list[dict[str, Any]]) -> dict[tuple[int, int], dict[str, Any]]:
    """Records by (request index, repeat), with which their keys end; else by their order."""
    records: dict[tuple[int, int], dict[str, Any]] = {}
    for index, record in enumerate(answers):
        parts = str(record.get("key", "")).rsplit("/", 3)
        numbered = len(parts) == 4 and all(part.isdecimal() and len(part) < 10 for part in parts[1:3])
        records[(int(parts[1]), int(parts[2])) if numbered else (index, 0)] = record
    return records


def _answers(document: Document, scored: bool) -> Iterator[AnswerView]:
    first, records = document.rows[0], _records(document.answers)
    for index, (argument, responses) in enumerate(zip(first["arguments"].values(), first["resps"], strict=False)):
        prompt, second = _text(argument.get("arg_0", "")), argument.get("arg_1", "")
        for repeat, response in enumerate(responses):
            record = records.get((index, repeat), {})
            if scored:
                value = _log_likelihood(response, record)
                yield AnswerView(index, repeat, prompt, _text(second), {}, record, None, value)
            else:
                settings = second if isinstance(second, Mapping) else {}
                trace = document.traces.get(str(record.get("trace_ref")))
                order = unmasking(trace) if trace else None
                yield AnswerView(index, repeat, prompt, _text(response), settings, record, order)


def _log_likelihood(response: Any, record: Mapping[str, Any]) -> float | None:
    """From the record, else from lm-eval's ["-1.5", "False"]."""
    logged = response[0] if isinstance(response, list) and response else response
    for value in (record.get("value"), logged):
        if isinstance(value, (int, float, str)):
            with suppress(ValueError, OverflowError):
                number = float(value)
                if not math.isnan(number):
                    return number
    return None


def _marked_choices(answers: list[AnswerView], target: str) -> list[AnswerView]:
    """The choices, the most likely and the correct one marked; the target is a choice's number or its text."""
    if len(answers) < 2:
        return answers
    top = max((answer.value for answer in answers if answer.value is not None), default=None)
    return [
        replace(
            answer,
            best=top is not None and answer.value == top,
            gold=target.strip() in (str(at), answer.text.strip()),
        )
        for at, answer in enumerate(answers)
    ]


def _text(value: Any, depth: int = 0) -> str:
    """A filtered response as text; a list of one without brackets."""
    if isinstance(value, str):
        return value
    if value is None or depth > 20:
        return ""
    if isinstance(value, list):
        if len(value) == 1:
            return _text(value[0], depth + 1)
        turns = bool(value) and all(isinstance(turn, dict) and "role" in turn for turn in value)
        return ("\n\n" if turns else ", ").join(_text(part, depth + 1) for part in value)
    if isinstance(value, dict) and set(value) == {"role", "content"}:
        return f"[{value['role']}]\n{_text(value['content'], depth + 1)}"
    return str(value)
