"""Files of training rows: JSONL, JSON, CSV, parquet; one row at a time. A row that cannot be read is a :class:`FileRow`
with a ``problem``: the caller counts all of them.

JSON is not read by ``datasets``, which stops at the first error, gives all rows the same keys ({"m": null} where
another row has m), and refuses a column of numbers and texts.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from dare_bench.errors import DataError, UsageError, brief
from dare_bench.reading import MAX_LINE, check_nesting, open_regular, unique_object

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".parquet")
MAX_ARRAY = 1 << 30
"""Maximum size of a file that is one JSON array, which is read at once."""
PARQUET_ROWS = 1024
"""Rows of a parquet file in memory at a time."""


@dataclass(frozen=True, slots=True)
class FileRow:
    """One row: its columns, or the problem that prevented reading it."""

    where: str
    value: dict[str, Any] | None
    problem: str = ""


@dataclass(frozen=True)
class RowTable:
    """The rows of one file. ``columns`` includes the fields of columns (``extra_info.question``); it is empty if no row
    can be read."""

    name: str
    columns: frozenset[str]
    rows: Iterator[FileRow]


def reason(error: BaseException) -> str:
    """The first line of an exception, for a message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def open_file(file: Path, keep: frozenset[str] | None) -> RowTable:
    """A file as a table. The columns are those of its first readable row; of a parquet file only ``keep`` is read
    (None: all)."""
    if file.name.endswith(".parquet"):
        return _parquet(file, keep)
    return of_first_row(str(file), _csv_rows(file) if file.name.endswith(".csv") else _json_rows(file))


def of_first_row(name: str, rows: Iterator[FileRow]) -> RowTable:
    """Rows as a table with the columns of the first readable one."""
    first: list[FileRow] = []
    while (row := next(rows, None)) is not None:
        first.append(row)
        if row.value is not None:
            break
    columns = frozenset(_names(first[-1].value or {})) if first else frozenset()
    return RowTable(name, columns, chain(first, rows))


def _names(value: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in value.items():
        yield f"{prefix}{name}"
        if isinstance(inner, dict) and not prefix:
            yield from _names(inner, f"{name}.")


# -- JSON ------------------------------------------------------------------------------------------------------------


def _json_rows(file: Path) -> Iterator[FileRow]:
    """The objects of a file of JSON lines or of one JSON array, each with its line number."""
    number = 0
    try:
        with open_regular(file, DataError) as raw:
            stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if file.name.endswith(".gz") else raw  # type: ignore[assignment]
            while line := stream.readline(MAX_LINE + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                    if ".json" in file.suffixes and line.lstrip()[:1] == b"[":
                        array = line + stream.read(MAX_ARRAY + 1 - len(line))
                        if len(array) > MAX_ARRAY:
                            raise DataError(f"{file}: an array of more than {MAX_ARRAY:,} bytes; write one row a line")
                        yield from _array_rows(str(file), array)
                        return
                if len(line) > MAX_LINE:
                    raise DataError(f"{file}:{number}: longer than {MAX_LINE:,} bytes, the maximum length of a line")
                if line.strip():
                    yield _json_row(f"{file}:{number}", line)
    except (OSError, EOFError, zlib.error) as error:  # the last two: a gzip file that is cut off or damaged
        raise DataError(f"{file}:{number + 1}: cannot be read any further ({reason(error)})") from error


def _json_row(where: str, line: bytes) -> FileRow:
    try:
        return checked_row(where, json.loads(line.decode(), object_pairs_hook=unique_object))
    except (ValueError, RecursionError) as error:
        return FileRow(where, None, _problem(error))


def checked_row(where: str, value: Any) -> FileRow:
    """A value as a row, if it is an object; raises ValueError if it is nested too deeply."""
    check_nesting(value)
    if isinstance(value, dict):
        return FileRow(where, value)
    return FileRow(where, None, f"a row is an object of columns, this is a {type(value).__name__} ({brief(value)})")


def _problem(error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg} at character {error.pos})"
    if isinstance(error, RecursionError):
        return "not valid JSON (nested too deeply)"
    return f"not valid JSON ({error})"


def _array_rows(name: str, raw: bytes) -> Iterator[FileRow]:
    """The objects of one JSON array, by their number."""
    try:
        rows = json.loads(raw.decode(), object_pairs_hook=unique_object)
        check_nesting(rows)
    except (ValueError, RecursionError) as error:
        yield FileRow(f"{name}:{getattr(error, 'lineno', 1)}", None, _problem(error))
        return
    yield from (checked_row(f"{name}:row {number}", row) for number, row in enumerate(rows, 1))


# -- CSV ---------------------------------------------------------------------------------------------------------------


def _csv_rows(file: Path) -> Iterator[FileRow]:
    """The records of a CSV file in UTF-8 whose first line names the columns; all values are text."""
    where = f"{file}:1"
    try:
        with open_regular(file, DataError) as raw:
            reader = csv.reader(_csv_lines(file, raw), strict=True)
            names = next(reader, [])
            if duplicates := sorted(name for name in names if names.count(name) > 1):
                raise DataError(f"{where}: column {duplicates[0]!r} occurs more than once; keep one")
            for record in filter(None, reader):
                where = f"{file}:{reader.line_num}"
                if len(record) == len(names):
                    yield FileRow(where, dict(zip(names, record, strict=True)))
                else:
                    yield FileRow(where, None, f"{len(record)} values; expected {len(names)}, as in the first line")
    except (OSError, csv.Error) as error:
        raise DataError(f"{where}: cannot be read any further ({reason(error)})") from error


def _csv_lines(file: Path, raw: IO[bytes]) -> Iterator[str]:
    number = 0
    while line := raw.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise DataError(f"{file}:{number}: longer than {MAX_LINE:,} bytes, the maximum length of a line")
        try:
            yield line.removeprefix(b"\xef\xbb\xbf" if number == 1 else b"").decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{file}:{number}: {_problem(error)}; write the file in UTF-8") from error


# -- parquet -----------------------------------------------------------------------------------------------


def imported(module: str, what: str) -> Any:
    """An optional package; ``what`` needs it. Raises UsageError."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(f"{what} needs {package}; install it with: pip install 'dare-bench[train]'") from error


def _parquet(file: Path, keep: frozenset[str] | None) -> RowTable:
    parquet = imported("pyarrow.parquet", f"{file}: a parquet file")
    try:
        source = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow.ArrowInvalid is a ValueError
        raise DataError(f"{file}: not a readable parquet file ({reason(error)})") from error
    names = source.schema_arrow.names
    if duplicates := sorted(name for name in names if names.count(name) > 1):
        raise DataError(f"{file}: column {duplicates[0]!r} occurs more than once; keep one")
    rows = _parquet_rows(file, source, [name for name in names if keep is None or name in keep])
    return RowTable(str(file), frozenset(schema_names(source.schema_arrow)), rows)


def _parquet_rows(file: Path, source: Any, columns: list[str]) -> Iterator[FileRow]:
    start = 1
    try:
        for batch in source.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
            for i in range(batch.num_rows):
                where = f"{file}:row {start + i}"
                try:
                    yield FileRow(where, batch.slice(i, 1).to_pylist()[0])
                except UnicodeDecodeError as error:
                    yield FileRow(where, None, _problem(error))
            start += batch.num_rows
    except (OSError, ValueError) as error:
        raise DataError(f"{file}:row {start}: cannot be read any further ({reason(error)})") from error


def schema_names(schema: Any) -> Iterator[str]:
    """Columns of a pyarrow schema, and the fields of struct columns."""
    for column in schema:
        yield column.name
        yield from (f"{column.name}.{field.name}" for field in getattr(column.type, "fields", ()))
