"""An index of the documents in sample and trace files, by the offsets of their lines."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import open_regular, parse_json, read_lines
from dare_bench.runs.field_types import LineModel, check
from dare_bench.runs.lines import LoggedLine, SampleLine, TraceLine

_STRING = rb'"(?:[^"\\]|\\.)*"'
_ID = re.compile(rb'\s*\{(?:\s*"key"\s*:\s*%b\s*,)?\s*"doc_id"\s*:\s*(-?\d{1,18}|%b)\s*,' % (_STRING, _STRING))
"""The beginning of a line as harnesses and we write it, with its document id."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a task: its sample lines (``rows``), one for each filter, and its trace lines by request key."""

    task: str
    doc_id: int | str
    rows: list[dict[str, Any]]
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The ``dare_bench`` records of its requests."""
        return list(self.rows[0].get("dare_bench", ()))


class DocumentIndex(ABC):
    """The documents of one task, by id as text."""

    ids: list[str]
    """Document ids as text."""

    @abstractmethod
    def document(self, doc_id: int | str) -> Document:
        """The document with that id; raises KeyError."""

    def __iter__(self) -> Iterator[Document]:
        return map(self.document, self.ids)

    def __len__(self) -> int:
        return len(self.ids)


class LoadedIndex(DocumentIndex):
    """The documents of one task whose rows are in memory; each has one row."""

    def __init__(self, task: str, rows: Sequence[dict[str, Any]]) -> None:
        self._documents = {str(row["doc_id"]): Document(task, row["doc_id"], [row]) for row in rows}
        self.ids = list(self._documents)

    def document(self, doc_id: int | str) -> Document:
        return self._documents[str(doc_id)]


class SampleIndex(DocumentIndex):
    """The documents in a samples file, in the order of their first lines; only one is in memory at a time. Building it
    reads only the document id of each line. ``line`` is what each line must fit; raises RunError."""

    def __init__(self, task: str, samples: Path, traces: Path | None, line: type[LoggedLine] = SampleLine) -> None:
        self.task = task
        self._samples, self._traces, self._line = samples, traces, line
        self._rows = _offsets(samples, line)
        self._trace_rows = _offsets(traces, TraceLine) if traces else {}
        self.ids = list(self._rows)

    def document(self, doc_id: int | str) -> Document:
        (document,) = self._read({str(doc_id): self._rows[str(doc_id)]})
        return document

    def __iter__(self) -> Iterator[Document]:
        return self._read(self._rows)

    def _read(self, rows: Mapping[str, Sequence[int]]) -> Iterator[Document]:
        with ExitStack() as stack:
            sample_at = _line_reader(stack, self._samples, self._line)
            trace_at = _line_reader(stack, self._traces, TraceLine) if self._traces else None
            for doc_id, offsets in rows.items():
                samples = [sample_at(offset) for offset in offsets]
                traces = [trace_at(offset) for offset in self._trace_rows.get(doc_id, ())] if trace_at else []
                yield Document(self.task, samples[0]["doc_id"], samples, {line["key"]: line for line in traces})


def _line_reader(stack: ExitStack, path: Path, model: type[LineModel]) -> Callable[[int], dict[str, Any]]:
    """A function that reads the line at an offset of the file, which ``stack`` closes."""
    file = stack.enter_context(open_regular(path, RunError))

    def read(offset: int) -> dict[str, Any]:
        file.seek(offset)
        raw = file.readline()
        try:
            return _parse(raw, model)
        except ValueError as error:
            file.seek(0)
            number = 1
            while (left := offset - file.tell()) > 0:
                number += file.read(min(left, 1 << 20)).count(b"\n")
            raise _damaged(path, number, error) from error

    return read


def lines(path: Path, model: type[LineModel]) -> Iterator[dict[str, Any]]:
    """The lines of a samples or traces file, which fit the model; invalid UTF-8 becomes U+FFFD; raises RunError."""
    for number, _, raw in read_lines(path, RunError):
        try:
            yield _parse(raw, model)
        except ValueError as error:
            raise _damaged(path, number, error) from error


def _offsets(path: Path, model: type[LineModel]) -> dict[str, list[int]]:
    """The offsets of each document's lines, by document id."""
    offsets: dict[str, list[int]] = {}
    for number, offset, raw in read_lines(path, RunError):
        match = _ID.match(raw)
        try:
            doc_id = parse_json(match[1].decode("utf-8", "replace")) if match else _parse(raw, model)["doc_id"]
        except ValueError as error:
            raise _damaged(path, number, error) from error
        offsets.setdefault(str(doc_id), []).append(offset)
    return offsets


def _parse(raw: bytes, model: type[LineModel]) -> dict[str, Any]:
    """The JSON object of a line; raises ValueError unless it fits the model."""
    value = parse_json(raw.decode("utf-8", "replace"))
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    check(model, value)
    return value


def _damaged(path: Path, number: int, error: ValueError) -> RunError:
    return RunError(f"{path}, line {number} is damaged: {error}")
