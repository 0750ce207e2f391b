"""Finding documents in sample and trace files without holding them: an index of where each line starts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import open_regular, parse_json, read_lines
from dare_bench.runs.lines import check_sample_line, check_trace_line

_STRING = rb'"(?:[^"\\]|\\.)*"'
_ID = re.compile(rb'\s*\{(?:\s*"key"\s*:\s*%b\s*,)?\s*"doc_id"\s*:\s*(-?\d{1,18}|%b)\s*,' % (_STRING, _STRING))
"""The beginning of a line as harnesses and we write it: its document is known without reading the rest."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a task with all that is known of it.

    ``rows`` are its sample lines, one for each filter, in the file's order; ``traces`` its trace lines by request key.
    """

    task: str
    doc_id: int | str
    rows: list[dict[str, Any]]
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The ``dare_bench`` records of its requests."""
        return list(self.rows[0].get("dare_bench", ()))


class SampleIndex:
    """The documents of one task, in the order of their first lines; one is in memory at a time.

    Making it reads no more of a line than its document's id; the line itself is read when its document is asked for.

    Raises:
        RunError: a file cannot be read, or a line (now, or when it is read) is not of the schema.
    """

    def __init__(self, task: str, samples: Path, traces: Path | None) -> None:
        self.task = task
        self._samples, self._traces = samples, traces
        self._rows = _places(samples, check_sample_line)
        self._trace_places = _places(traces, check_trace_line) if traces else {}

    @property
    def ids(self) -> list[str]:
        """Document ids as text."""
        return list(self._rows)

    def document(self, doc_id: int | str) -> Document:
        """The document of that id; raises KeyError."""
        places = self._rows[str(doc_id)]
        with self._open() as (samples, traces):
            return self._read(str(doc_id), places, samples, traces)

    def __iter__(self) -> Iterator[Document]:
        with self._open() as (samples, traces):
            for doc_id, places in self._rows.items():
                yield self._read(doc_id, places, samples, traces)

    def __len__(self) -> int:
        return len(self._rows)

    def _read(self, doc_id: str, places: list[int], samples: _Lines, traces: _Lines | None) -> Document:
        rows = [samples.at(place) for place in places]
        lines = [traces.at(place) for place in self._trace_places.get(doc_id, ())] if traces else []
        return Document(self.task, rows[0]["doc_id"], rows, {line["key"]: line for line in lines})

    @contextmanager
    def _open(self) -> Iterator[tuple[_Lines, _Lines | None]]:
        with ExitStack() as stack:
            samples = _Lines(self._samples, check_sample_line, stack)
            traces = _Lines(self._traces, check_trace_line, stack) if self._traces else None
            yield samples, traces


Check = Callable[[Any], None]


class _Lines:
    """An open file of lines, read at the places where they start."""

    def __init__(self, path: Path, check: Check, stack: ExitStack) -> None:
        self._path, self._check = path, check
        self._file = stack.enter_context(open_regular(path, RunError))

    def at(self, place: int) -> dict[str, Any]:
        self._file.seek(place)
        raw = self._file.readline()
        try:
            return _object(raw, self._check)
        except ValueError as error:
            raise _damaged(self._path, self._number(place), error) from error

    def _number(self, place: int) -> int:
        """The number of the line that starts at ``place``, for a message."""
        self._file.seek(0)
        number = 1
        while (left := place - self._file.tell()) > 0:
            number += self._file.read(min(left, 1 << 20)).count(b"\n")
        return number


def sample_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a samples file; bytes that are no UTF-8 become U+FFFD.

    Raises:
        RunError: the file cannot be read, or a line is not of the schema.
    """
    return _objects(path, check_sample_line)


def trace_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The same of a traces file."""
    return _objects(path, check_trace_line)


def _objects(path: Path, check: Check) -> Iterator[dict[str, Any]]:
    for number, _place, raw in read_lines(path, RunError):
        try:
            yield _object(raw, check)
        except ValueError as error:
            raise _damaged(path, number, error) from error


def _places(path: Path, check: Check) -> dict[str, list[int]]:
    """By document id, where its lines start."""
    found: dict[str, list[int]] = {}
    for number, place, raw in read_lines(path, RunError):
        known = _ID.match(raw)
        try:
            doc_id = parse_json(known[1].decode("utf-8", "replace")) if known else _object(raw, check)["doc_id"]
        except ValueError as error:
            raise _damaged(path, number, error) from error
        found.setdefault(str(doc_id), []).append(place)
    return found


def _object(raw: bytes, check: Check) -> dict[str, Any]:
    """A line's object, checked; raises ValueError, which says what is wrong."""
    value = _value(raw)
    check(value)
    return value


def _value(raw: bytes) -> dict[str, Any]:
    value = parse_json(raw.decode("utf-8", "replace"))
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _damaged(path: Path, number: int, error: ValueError) -> RunError:
    return RunError(f"{path}, line {number} is damaged: {error}")
