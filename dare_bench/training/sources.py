"""Where training rows come from: files, folders and patterns of them, Hugging Face data sets, rows in memory."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError, UsageError, brief
from dare_bench.harness.common.by_name import by_name
from dare_bench.harness.common.local_data import ENVIRONMENT, MANIFEST, LocalData
from dare_bench.hub import why_offline
from dare_bench.log import log
from dare_bench.reading import existing
from dare_bench.training.files import (
    SUFFIXES,
    FileRow,
    RowTable,
    checked_row,
    imported,
    of_first_row,
    reason,
    schema_names,
)

SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?(:[\w.-]+)?")


def find_files(data: str, split: str) -> list[Path]:
    """The files of ``data``, sorted; none if it can only be a hub id. Of a folder, the files of the split
    (``train.jsonl``, ``data/train-00000.parquet``), or all files if no file name contains a split. Raises UsageError: a
    path, pattern or folder without such files."""
    allowed = ", ".join(SUFFIXES)
    path = existing(data)
    if path is not None and path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise UsageError(f"{data} is not recognized as training data by its name; allowed: {allowed}")
        return [path]
    if path is not None and path.is_dir():
        return _of_folder(path, split)
    if glob.has_magic(data):
        pattern = os.path.expanduser(data)  # noqa: PTH111 - Path.glob takes no absolute pattern
        matching = map(Path, glob.glob(pattern, recursive=True))  # noqa: PTH207
        files = sorted(file for file in matching if file.name.endswith(SUFFIXES) and file.is_file())
        if not files:
            raise UsageError(f"no training file matches {data!r}; allowed: {allowed}")
        return files
    if path is not None or not HUB_ID.fullmatch(data) or data.endswith(SUFFIXES):
        problem = "is not there" if path is None else "is neither a file nor a folder"
        raise UsageError(f"{data} {problem}; give a file ({allowed}), a folder of them or a hub id")
    return []


def _of_folder(folder: Path, split: str) -> list[Path]:
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name.endswith(SUFFIXES))
    names = {name: p for p in files if not re.search(r"(^|/)\.", name := p.relative_to(folder).as_posix())}
    if not names:
        raise UsageError(f"{folder} holds no training file; allowed: {', '.join(SUFFIXES)}")
    of_split = [p for name, p in names.items() if _is_of_split(name, split)]
    if not of_split and any(_is_of_split(name, other) for name in names for other in SPLITS):
        raise UsageError(
            f"{folder} has no file of the split {split!r} ({brief(', '.join(names), 120)}); "
            "name the file itself, or another split"
        )
    return of_split or list(names.values())


def _is_of_split(name: str, split: str) -> bool:
    """Is the split a word of the file's name? (``train3.jsonl`` and ``train-00000`` are train, ``trainer`` is not.)"""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(split)}(?![A-Za-z])", name) is not None


def open_hub(name: str, split: str) -> RowTable:
    """A data set of the Hugging Face hub, ``owner/name`` or ``owner/name:config``, through the ``datasets`` library;
    from local files if the manifest of ``DARE_BENCH_DATA`` lists it, as for evaluations. Raises DataError: it cannot be
    loaded (no network and not in the cache, no such data set, split or config; a listed file is missing or another
    one); UsageError: the library is not installed."""
    datasets = imported("datasets", f"{name}: a data set of the hub")
    hub_id, _, config = name.partition(":")
    local = LocalData.find(None)
    source: dict[str, Any] = {"dataset_path": hub_id, "dataset_name": config or None}
    listed = None if local is None else local.redirect(source)
    given = source if listed is None else listed
    try:
        with by_name():
            dataset = datasets.load_dataset(
                given["dataset_path"], given["dataset_name"], split=split, **given.get("dataset_kwargs", {})
            )
    except Exception as error:  # the library raises many kinds
        if local is not None and listed is not None:
            problem = f"the files that {local.folder / MANIFEST} lists for it cannot be loaded ({reason(error)}); "
            remedy = f"check them and the split; they have {', '.join(listed['dataset_kwargs']['data_files'])}"
        elif offline := why_offline(error):
            problem = f"{offline}, and it is neither a file or folder nor in the cache (HF_HOME); "
            remedy = f"give a local file, or list it in a manifest ({ENVIRONMENT}, docs/data.md)"
        else:
            problem = f"no such file or folder, and the hub has no such data set ({reason(error)}); "
            remedy = "check the name, or give a local file"
        raise DataError(f"{name}: {problem}{remedy}") from error
    for note in local.notes if local is not None else ():
        log.warning("%s", note)
    rows = (FileRow(f"{name}[{split}]:row {i}", dict(row)) for i, row in enumerate(dataset, 1))
    return RowTable(f"{name}[{split}]", frozenset(schema_names(dataset.features.arrow_schema)), rows)


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
    return of_first_row(name, file_rows)


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
        row = checked_row(where, value)
    except (ValueError, RecursionError) as error:
        return FileRow(where, None, str(error))
    names: Iterable[Any] = row.value or ()
    for name in names:
        if not isinstance(name, str):
            return FileRow(where, None, f"a column is called {brief(name)}, a {type(name).__name__}; expected text")
    return row
