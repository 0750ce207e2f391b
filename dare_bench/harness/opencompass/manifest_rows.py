"""The data sets of a manifest folder as rows, for loaders that read files of their own format.

:class:`~dare_bench.harness.common.local_data.LocalData` serves what lm-eval's tasks need; OpenCompass also needs
splits that no lm-eval task names (MBPP's shots). They are matched among an entry's ``files`` by their stem:
``mbpp/prompt.jsonl`` is the split ``prompt``. An entry without ``lm_eval`` may name its files under ``load`` in the
same way.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from dare_bench.errors import DataError
from dare_bench.fingerprint import digest
from dare_bench.harness.common.local_data import LocalData, LocalSet, ManifestEntry, _sha256, entries
from dare_bench.reading import open_regular, parse_json

Row = dict[str, Any]
MAX_DATA = 256 << 20
"""Largest data file, decompressed."""


class ManifestRows(LocalData):
    """The data sets of one folder, by hub id: ``"openai/gsm8k:main"``, or ``"cais/mmlu"`` with a config for each call.

    Raises:
        DataError: the manifest or one of its entries cannot be read.
    """

    def _read(self) -> Iterator[LocalSet]:
        for entry in entries(self.folder, "lm_eval", "load"):
            if files := _all_splits(entry):
                yield entry.served(files)

    def key(self) -> str:
        """Ten hex digits over the content of every file that a data set here consists of."""
        return digest([[found.name, sorted(self._contents(found))] for found in self._sets])

    def _contents(self, found: LocalSet) -> Iterator[tuple[str, str]]:
        for value in found.data_files.values():
            for name in value if isinstance(value, list) else [value]:
                for config in found.configs if "{config}" in name else ("",):
                    relative = name.replace("{config}", config)
                    path = self._place(relative)
                    listed = found.sha256.get(relative)
                    yield relative, listed or (_sha256(path) if path.is_file() else "")

    def has(self, *ids: str) -> bool:
        """The manifest lists one of these data sets."""
        return self._find(ids) is not None

    def configs(self, *ids: str) -> tuple[str, ...]:
        """The configs of the first of ``ids`` that the manifest lists; empty for none."""
        found = self._find(ids)
        return found[1].configs if found else ()

    def _find(self, ids: Sequence[str]) -> tuple[str, LocalSet] | None:
        """The first of ``ids`` that is listed, and its entry."""
        for hub_id in ids:
            name, _, config = hub_id.partition(":")
            for found in self._sets:
                if any(name == listed and (config or None) == one for listed, one, _ in found.ids):
                    return hub_id, found
        return None

    def check(self, *ids: str) -> None:
        """Compares every file of a data set with the manifest, and notes what the manifest says of it.

        Raises:
            DataError: a file is missing or is not the one that the manifest describes.
        """
        if found := self._find(ids):
            for config in found[1].configs or ("",):
                self._data_files(ids, config)

    def _data_files(self, ids: Sequence[str], config: str) -> Mapping[str, Any]:
        found = self._find(ids)
        if found is None:
            return {}
        name, _, fixed = found[0].partition(":")
        keys = self.redirect({"dataset_path": name, "dataset_name": config or fixed or None})
        return dict(keys["dataset_kwargs"]["data_files"]) if keys else {}

    def rows(self, ids: Sequence[str], split: str, config: str = "") -> list[Row] | None:
        """All rows of a split, or None where the manifest lacks the data set, the config or the split.

        Raises:
            DataError: a file is missing, changed, or cannot be read.
        """
        found = self._find(ids)
        files = self._data_files(ids, config).get(split)
        if found is None or files is None:
            return None
        return [
            row for path in ([files] if isinstance(files, str) else files) for row in _read(Path(path), found[1].loader)
        ]


def _all_splits(entry: ManifestEntry) -> dict[str, str | list[str]]:
    """The data files of an entry by split, with the splits of its ``files`` added."""
    how = entry.lm_eval.dataset_kwargs if entry.lm_eval else entry.load
    splits = dict(how.data_files) if how else {}
    for listed in entry.files:
        path = PurePosixPath(listed.file)
        place = path.parent.parent / "{config}" if path.parent.name in entry.configs else path.parent
        splits.setdefault(path.name.split(".")[0], (place / path.name).as_posix())
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
        # Not splitlines: JSON strings may hold U+2028, which it would split at.
        whole = text.lstrip().startswith("[")
        rows = parse_json(text) if whole else [parse_json(line) for line in text.split("\n") if line.strip()]
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
