"""Finding documents in sample and trace files without holding them: an index of where each line starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from dare_bench.errors import RunError


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
        found: list[dict[str, Any]] = self.rows[0].get("dare_bench") or []
        return found


class SampleIndex:
    """The documents of one task, in the order of their first lines; one is in memory at a time.

    Raises:
        RunError: a file cannot be read, or a line is no JSON object.
    """

    def __init__(self, task: str, samples: Path, traces: Path | None) -> None:
        self.task = task
        self._samples, self._traces = samples, traces
        self._rows: dict[str, list[int]] = {}
        for place, row in read_lines(samples):
            self._rows.setdefault(str(row.get("doc_id")), []).append(place)
        self._trace_places: dict[str, list[int]] = {}
        for place, row in read_lines(traces) if traces else ():
            self._trace_places.setdefault(str(row.get("doc_id")), []).append(place)

    @property
    def ids(self) -> list[str]:
        """Document ids as text."""
        return list(self._rows)

    def document(self, doc_id: int | str) -> Document:
        """The document of that id; raises KeyError."""
        rows = [line_at(self._samples, place) for place in self._rows[str(doc_id)]]
        places = self._trace_places.get(str(doc_id), ()) if self._traces else ()
        traces = [line_at(self._traces, place) for place in places] if self._traces else []
        return Document(self.task, rows[0].get("doc_id", doc_id), rows, {str(t.get("key")): t for t in traces})

    def __iter__(self) -> Iterator[Document]:
        return (self.document(doc_id) for doc_id in self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def read_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(where the line starts, its object) for each line; bytes that are no UTF-8 become U+FFFD."""
    try:
        with path.open("rb") as file:
            yield from _lines(file, path)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error


def _lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    place = 0
    for number, raw in enumerate(file, start=1):
        if raw.strip():
            yield place, _object(raw, f"{path}, line {number}")
        place += len(raw)


def line_at(path: Path, place: int) -> dict[str, Any]:
    """The object of the line that starts at byte ``place``."""
    try:
        with path.open("rb") as file:
            file.seek(place)
            raw = file.readline()
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error
    return _object(raw, f"{path}, byte {place}")


def _object(raw: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(raw.decode("utf-8", "replace"))
    except ValueError as error:
        raise RunError(f"{where} is damaged: not JSON ({error})") from error
    if not isinstance(value, dict):
        raise RunError(f"{where} is damaged: expected a JSON object, found {type(value).__name__}")
    return value
