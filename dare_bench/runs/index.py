"""Finding documents in sample and trace files without holding them: an index of where each line starts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dare_bench.errors import RunError

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
        """The ``dare_bench`` records of its requests; what is no record, in a damaged line, is left out."""
        found = self.rows[0].get("dare_bench")
        return [record for record in found if isinstance(record, dict)] if isinstance(found, list) else []


class SampleIndex:
    """The documents of one task, in the order of their first lines; one is in memory at a time.

    Making it reads no more of a line than its document's id; the line itself is read when its document is asked for.

    Raises:
        RunError: a file cannot be read, or a line (now, or when it is read) is no JSON object.
    """

    def __init__(self, task: str, samples: Path, traces: Path | None) -> None:
        self.task = task
        self._samples, self._traces = samples, traces
        self._rows = _places(samples)
        self._trace_places = _places(traces) if traces else {}

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
        found = rows[0].get("doc_id", doc_id)
        known = found if isinstance(found, (int, str)) else doc_id
        return Document(self.task, known, rows, {str(line.get("key")): line for line in lines})

    @contextmanager
    def _open(self) -> Iterator[tuple[_Lines, _Lines | None]]:
        with ExitStack() as stack:
            samples = _Lines(self._samples, stack)
            yield samples, _Lines(self._traces, stack) if self._traces else None


class _Lines:
    """An open file of lines, read at the places where they start."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._path = path
        with _named(path):
            self._file = stack.enter_context(path.open("rb"))

    def at(self, place: int) -> dict[str, Any]:
        with _named(self._path):
            self._file.seek(place)
            raw = self._file.readline()
        try:
            return _object(raw)
        except ValueError as error:
            raise _damaged(self._path, self._number(place), error) from error

    def _number(self, place: int) -> int:
        """The number of the line that starts at ``place``, for a message."""
        with _named(self._path):
            self._file.seek(0)
            number = 1
            while (left := place - self._file.tell()) > 0:
                number += self._file.read(min(left, 1 << 20)).count(b"\n")
            return number


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(where the line starts, its object) for each line; bytes that are no UTF-8 become U+FFFD.

    Raises:
        RunError: the file cannot be read, or a line is no JSON object.
    """
    for number, place, raw in _raw_lines(path):
        try:
            yield place, _object(raw)
        except ValueError as error:
            raise _damaged(path, number, error) from error


def _places(path: Path) -> dict[str, list[int]]:
    """By document id, where its lines start."""
    found: dict[str, list[int]] = {}
    for number, place, raw in _raw_lines(path):
        known = _ID.match(raw)
        try:
            doc_id = json.loads(known[1].decode("utf-8", "replace")) if known else _object(raw).get("doc_id")
        except ValueError as error:
            raise _damaged(path, number, error) from error
        found.setdefault(str(doc_id), []).append(place)
    return found


def _raw_lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, where it starts, bytes) for each line that is not empty."""
    with _named(path), path.open("rb") as file:
        yield from _walk(file)


def _walk(file: BinaryIO) -> Iterator[tuple[int, int, bytes]]:
    place = 0
    for number, raw in enumerate(file, start=1):
        if not raw.isspace():
            yield number, place, raw
        place += len(raw)


def _object(raw: bytes) -> dict[str, Any]:
    """A line's object; raises ValueError, which says what is wrong."""
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
    except RecursionError:
        raise ValueError("not JSON (nested too deeply)") from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _damaged(path: Path, number: int, error: ValueError) -> RunError:
    return RunError(f"{path}, line {number} is damaged: {error}")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
