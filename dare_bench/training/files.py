"""Sources of training rows: JSONL, JSON, CSV, parquet, folders of them, Hugging Face data sets, rows in memory; one row
at a time.

A row that cannot be read is a :class:`FileRow` with a ``problem``, not an exception: the caller counts all of them.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import importlib
import json
import logging
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.local_data import MANIFEST, LocalData, without_scripts
from dare_bench.reading import MAX_LINE, check_nesting, existing, open_regular, unique_object

log = logging.getLogger("dare_bench")

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".csv", ".parquet")
SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")
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


def shown(value: Any, most: int = 60) -> str:
    """A value for a message: one line, truncated."""
    text = " ".join(repr(value).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def reason(error: BaseException) -> str:
    """The first line of an exception, for a message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__


def find_files(data: str, split: str) -> list[Path]:
    """The files of ``data``, sorted; none if it can only be a hub id.

    Of a folder, the files of the split (``train.jsonl``, ``data/train-00000.parquet``), or all files if no file name
    contains a split.

    Raises:
        UsageError: a path, pattern or folder without such files.
    """
    allowed = ", ".join(SUFFIXES)
    path = existing(data)
    if path is not None and path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise UsageError(f"{data} is no training data by its name; allowed are {allowed}")
        return [path]
    if path is not None and path.is_dir():
        return _of_folder(path, split)
    if glob.has_magic(data):
        pattern = os.path.expanduser(data)  # noqa: PTH111 - Path.glob takes no absolute pattern
        matching = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        files = sorted(file for file in matching if file.name.endswith(SUFFIXES) and file.is_file())
        if not files:
            raise UsageError(f"no training file matches {data!r}; allowed are {allowed}")
        return files
    if path is not None or not HUB_ID.fullmatch(data) or data.endswith(SUFFIXES):
        problem = "is not there" if path is None else "is neither a file nor a folder"
        raise UsageError(f"{data} {problem}; give a file ({allowed}), a folder of them or a hub id")
    return []


def _of_folder(folder: Path, split: str) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
    names = {name: p for p in files if not re.search(r"(^|/)\.", name := p.relative_to(folder).as_posix())}
    if not names:
        raise UsageError(f"{folder} holds no training file; allowed are {', '.join(SUFFIXES)}")
    of_split = [p for name, p in names.items() if _is_of_split(name, split)]
    if not of_split and any(_is_of_split(name, other) for name in names for other in SPLITS):
        raise UsageError(
            f"{folder} has no file of the split {split!r} ({shown(', '.join(names), 120)}); "
            "name the file itself, or another split"
        )
    return of_split or list(names.values())


def _is_of_split(name: str, split: str) -> bool:
    """Is the split a word of the file's name? (``train3.jsonl`` and ``train-00000`` are train, ``trainer`` is not.)"""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(split)}(?![A-Za-z])", name) is not None


def open_file(file: Path, keep: frozenset[str]) -> RowTable:
    """A file as a table. The columns are those of its first readable row; of a parquet file only ``keep`` is read."""
    if file.name.endswith(".parquet"):
        return _parquet(file, keep)
    return _of_first_row(str(file), _csv_rows(file) if file.name.endswith(".csv") else _json_rows(file))


def _of_first_row(name: str, rows: Iterator[FileRow]) -> RowTable:
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


_DECODER = json.JSONDecoder(object_pairs_hook=unique_object)


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
        raise DataError(f"{file}:{number + 1}: cannot be read on ({reason(error)})") from error


def _json_row(where: str, line: bytes) -> FileRow:
    try:
        return _checked(where, json.loads(line.decode(), object_pairs_hook=unique_object))
    except (ValueError, RecursionError) as error:
        return FileRow(where, None, _problem(error))


def _checked(where: str, value: Any) -> FileRow:
    check_nesting(value)
    if isinstance(value, dict):
        return FileRow(where, value)
    return FileRow(where, None, f"a row is an object of columns, this is a {type(value).__name__} ({shown(value)})")


def _problem(error: ValueError | RecursionError) -> str:
    """The reason why a line is not a row."""
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8: byte 0x{error.object[error.start]:02x} at {error.start}"
    if isinstance(error, json.JSONDecodeError):
        return f"not valid JSON ({error.msg} at character {error.pos})"
    if isinstance(error, RecursionError):
        return "not valid JSON (nested too deeply)"
    return f"not valid JSON ({error})"


def _array_rows(name: str, raw: bytes) -> Iterator[FileRow]:
    """The objects of one JSON array, up to the first syntax error."""
    at, line, seen = 0, 1, 0
    try:
        text = raw.decode()
        at = text.index("[") + 1
        while True:
            at = _skip_space(text, at)
            line, seen = line + text.count("\n", seen, at), at
            if text[at : at + 1] == "]":
                if text[at + 1 :].strip():
                    yield FileRow(f"{name}:{line}", None, "text after the end of the array")
                return
            value, at = _DECODER.raw_decode(text, at)
            yield _checked(f"{name}:{line}", value)
            at = _skip_space(text, at)
            if text[at : at + 1] not in (",", "]"):
                raise json.JSONDecodeError("Expecting ',' or ']'", text, at)
            at += text[at] == ","
    except UnicodeDecodeError as error:
        yield FileRow(f"{name}:{1 + raw.count(10, 0, error.start)}", None, _problem(error))
    except (ValueError, RecursionError) as error:
        yield FileRow(f"{name}:{line}", None, _problem(error))


def _skip_space(text: str, at: int) -> int:
    while text[at : at + 1].isspace():
        at += 1
    return at


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
        raise DataError(f"{where}: cannot be read on ({reason(error)})") from error


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


# -- parquet and the hub -----------------------------------------------------------------------------------------------


def _import(module: str, what: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(f"{what} needs {package}; install it with: pip install 'dare-bench[train]'") from error


def _parquet(file: Path, keep: frozenset[str]) -> RowTable:
    parquet = _import("pyarrow.parquet", f"{file}: a parquet file")
    try:
        source = parquet.ParquetFile(file)
    except (OSError, ValueError) as error:  # pyarrow.ArrowInvalid is a ValueError
        raise DataError(f"{file}: not a readable parquet file ({reason(error)})") from error
    names = source.schema_arrow.names
    if duplicates := sorted(name for name in names if names.count(name) > 1):
        raise DataError(f"{file}: column {duplicates[0]!r} occurs more than once; keep one")
    rows = _parquet_rows(file, source, [name for name in names if name in keep])
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
        raise DataError(f"{file}:row {start}: cannot be read on ({reason(error)})") from error


def schema_names(schema: Any) -> Iterator[str]:
    """Columns of a pyarrow schema, and the fields of struct columns."""
    for column in schema:
        yield column.name
        yield from (f"{column.name}.{field.name}" for field in getattr(column.type, "fields", ()))


def open_hub(name: str, split: str) -> RowTable:
    """A data set of the Hugging Face hub, ``owner/name`` or ``owner/name:config``, through the ``datasets`` library;
    from local files if the manifest of ``DARE_BENCH_DATA`` lists it, as for evaluations.

    Raises:
        DataError: it cannot be loaded (no network and not in the cache, no such data set, split or config; a listed
            file is missing or another one).
        UsageError: the library is not installed.
    """
    datasets = _import("datasets", f"{name}: a data set of the hub")
    hub_id, _, config = name.partition(":")
    local = LocalData.find(None)
    source: dict[str, Any] = {"dataset_path": hub_id, "dataset_name": config or None}
    listed = None if local is None else local.redirect(source)
    given = source if listed is None else listed
    try:
        with without_scripts():
            dataset = datasets.load_dataset(
                given["dataset_path"], given["dataset_name"], split=split, **given.get("dataset_kwargs", {})
            )
    except Exception as error:  # the library raises many kinds
        if local is not None and listed is not None:
            problem = f"the files that {local.folder / MANIFEST} lists for it cannot be loaded ({reason(error)}); "
            remedy = f"check them and the split; they have {', '.join(listed['dataset_kwargs']['data_files'])}"
        else:
            problem = f"no such file or folder, and the hub has no such data set ({reason(error)}); "
            remedy = "check the name and the network, or give a local file"
        raise DataError(f"{name}: {problem}{remedy}") from error
    for note in local.notes if local is not None else ():
        log.warning("%s", note)
    rows = (FileRow(f"{name}[{split}]:row {i}", dict(row)) for i, row in enumerate(dataset, 1))
    return RowTable(f"{name}[{split}]", frozenset(schema_names(dataset.features.arrow_schema)), rows)


# -- rows in memory ----------------------------------------------------------------------------------------------------


def open_memory(rows: Any) -> RowTable:
    """Rows that a Python call gives: a list of dicts, or a ``datasets.Dataset``. Its name has a hash of the content.

    Raises:
        UsageError: another object. DataError: no rows.
    """
    is_dataset = _is_dataset(rows)
    if not is_dataset and not isinstance(rows, list | tuple):
        has_splits = isinstance(rows, dict) and any(map(_is_dataset, rows.values()))
        splits = f" with the splits {', '.join(map(str, rows))}; choose one" if has_splits else ""
        raise UsageError(
            f"data is a {type(rows).__name__}{splits}; give a path, a hub id, a list of dicts or a datasets.Dataset"
        )
    if not len(rows):
        raise DataError(f"data is an empty {type(rows).__name__}; give data with rows")
    plain = rows.with_format(None) if is_dataset else rows  # rows as Python values, not as tensors
    content = hashlib.sha256(b"".join(map(_content, plain))).hexdigest()
    name = f"{type(rows).__name__} of {len(rows)} rows (sha256:{content[:16]})"
    file_rows = (_memory_row(f"data:row {i}", row) for i, row in enumerate(plain, 1))
    if is_dataset:
        return RowTable(name, frozenset(schema_names(rows.features.arrow_schema)), file_rows)
    return _of_first_row(name, file_rows)


def _content(row: Any) -> bytes:
    """A row for the hash of a name. What JSON cannot represent is refused when the row is read."""
    try:
        text = json.dumps(row, ensure_ascii=False, sort_keys=True, skipkeys=True, default=str)
    except (TypeError, ValueError, RecursionError):
        text = ""
    return text.encode(errors="surrogatepass") + b"\n"


def _is_dataset(rows: Any) -> bool:
    """Is it a ``datasets.Dataset``? The library is not imported for the answer."""
    datasets = sys.modules.get("datasets")
    return datasets is not None and isinstance(rows, datasets.Dataset)


def _memory_row(where: str, value: Any) -> FileRow:
    try:
        row = _checked(where, value)
    except (ValueError, RecursionError) as error:
        return FileRow(where, None, str(error))
    names: Iterable[Any] = row.value or ()
    for name in names:
        if not isinstance(name, str):
            return FileRow(where, None, f"a column is called {shown(name)}, a {type(name).__name__}; expected text")
    return row
