"""The data sets of a manifest folder as rows, for loaders that read files of another format.

Splits that no lm-eval task names (MBPP's few-shot examples) are found among an entry's ``files`` by their stem:
``mbpp/prompt.jsonl`` is the split ``prompt``. An entry without ``lm_eval`` may name its files under ``load``.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from dare_bench.errors import DataError
from dare_bench.fingerprint import digest
from dare_bench.harness.common.local_data import Files, LocalData, ManifestEntry, manifest_entries, sha256
from dare_bench.reading import open_regular, parse_json

Row = dict[str, Any]
MAX_DATA = 256 << 20
"""Largest data file, decompressed."""


class ManifestRows(LocalData):
    """The data sets of one folder, by hub id: ``"openai/gsm8k:main"``, or ``"cais/mmlu"`` with a config for each call;
    raises DataError."""

    def _read(self) -> Iterator[tuple[ManifestEntry, Files]]:
        for entry in manifest_entries(self.folder, "lm_eval", "load"):
            if files := _all_splits(entry):
                yield entry, files

    def key(self) -> str:
        """Ten hex digits over the content of every file of every data set here."""
        contents = []
        for entry, files in self._entries:
            names = [name for value in files.values() for name in (value if isinstance(value, list) else [value])]
            configs = {name: entry.configs if "{config}" in name else ("",) for name in names}
            paths = [name.replace("{config}", config) for name in names for config in configs[name]]
            contents.append([entry.name, sorted((path, self._sha256(entry, path)) for path in paths)])
        return digest(contents)

    def _sha256(self, entry: ManifestEntry, relative: str) -> str:
        path = self._path(relative)
        return entry.sha256.get(relative) or (sha256(path) if path.is_file() else "")

    def configs(self, *ids: str) -> tuple[str, ...]:
        """The configs of the first of ``ids`` that the manifest lists; empty for none."""
        match = self._find(ids)
        return match[1].configs if match else ()

    def _find(self, ids: Sequence[str]) -> tuple[str, ManifestEntry] | None:
        """The first of ``ids`` that is listed, and its entry."""
        for hub_id in ids:
            name, _, config = hub_id.partition(":")
            for entry, _ in self._entries:
                if any((name, config or None) == listed[:2] for listed in entry.ids):
                    return hub_id, entry
        return None

    def check(self, *ids: str) -> None:
        """Compares every file of a data set with the manifest, and keeps the manifest's notes on it; raises
        DataError."""
        if match := self._find(ids):
            for config in match[1].configs or ("",):
                self._redirected(match[0], config)

    def _redirected(self, hub_id: str, config: str) -> dict[str, Any]:
        """The checked files of a data set, by split."""
        name, _, fixed = hub_id.partition(":")
        settings = self.redirect({"dataset_path": name, "dataset_name": config or fixed or None})
        return dict(settings["dataset_kwargs"]["data_files"]) if settings else {}

    def rows(self, ids: Sequence[str], split: str, config: str = "") -> list[Row] | None:
        """All rows of a split, or None if the manifest lacks the data set, the config or the split; raises
        DataError."""
        match = self._find(ids)
        files = self._redirected(match[0], config).get(split) if match else None
        if match is None or files is None:
            return None
        paths = [files] if isinstance(files, str) else files
        return [row for path in paths for row in _read(Path(path), match[1].loader)]


def _all_splits(entry: ManifestEntry) -> dict[str, str | list[str]]:
    """The data files of an entry by split, with the splits of its ``files`` added."""
    splits = entry.data_files
    for listed in entry.files:
        path = PurePosixPath(listed.file)
        folder = path.parent.parent / "{config}" if path.parent.name in entry.configs else path.parent
        splits.setdefault(path.name.split(".")[0], (folder / path.name).as_posix())
    return splits


def _read(path: Path, loader: str) -> list[Row]:
    """The rows of one file. JSON is one object a line, or one list."""
    try:
        if loader == "parquet":
            return list(_parquet(path))
        text = _text(path)
        if loader == "csv":
            return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]
        if loader == "text":
            return [{"text": line.rstrip("\n")} for line in io.StringIO(text, newline="")]
        if text.lstrip().startswith("["):
            rows = parse_json(text)
        else:  # not splitlines: JSON strings may hold U+2028, which it would split at
            rows = [parse_json(line) for line in text.split("\n") if line.strip()]
    except (OSError, ValueError, EOFError, csv.Error, zlib.error) as error:
        raise DataError(f"{path}: cannot be read as {loader} ({error}); correct the file or the manifest") from error
    if not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: a row is not an object; give one JSON object a line")
    return cast(list[Row], rows)


def _parquet(path: Path) -> Iterator[Row]:
    from pyarrow.parquet import ParquetFile

    size = 0
    with ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1000):
            size += batch.nbytes
            _check_size(path, size)
            yield from batch.to_pylist()


def _text(path: Path) -> str:
    with open_regular(path, DataError) as file, gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file as data:
        raw = data.read(MAX_DATA + 1)
    _check_size(path, len(raw))
    return raw.decode("utf-8")


def _check_size(path: Path, size: int) -> None:
    if size > MAX_DATA:
        raise DataError(f"{path}: larger than {MAX_DATA:,} bytes decompressed, the most for a data file; split it")
