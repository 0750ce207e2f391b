"""Data sets from local files instead of the hub: ``--data-dir DIR`` or ``DARE_BENCH_DATA``.

``DIR/manifest.json`` names the data sets by their hub ids::

    {"datasets": [{
        "name": "mmlu",
        "hf_ids": ["cais/mmlu"],              # "id", or "id:config" when the files are one config of it;
                                              # words in brackets after it, "(a subset)", become a note of the run
        "configs": ["anatomy", "astronomy"],  # the configs there are, where file names contain {config}
        "lm_eval": {
            "dataset_path": "json",           # a loader of the datasets library: json, csv, parquet, text
            "dataset_kwargs": {"data_files": {"test": "mmlu/{config}/test.jsonl.gz"}},   # split: file, relative to DIR
            "also_set": {"training_split": null}     # further keys of the task to set (optional)
        },
        "files": [{"file": "mmlu/anatomy/test.jsonl.gz", "sha256": "..."}]     # checked where given (optional)
    }]}

Files may be gzip-compressed. Other keys are ignored. A data set that the manifest does not list comes from the hub, as
lm-eval does it. A task is the same task wherever its data came from: no path enters its fingerprint or its results.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError

ENVIRONMENT = "DARE_BENCH_DATA"
MANIFEST = "manifest.json"
LOADERS = ("json", "csv", "parquet", "text")
"""Loaders of the datasets library that read files and run no code of a data set."""
_ID = re.compile(r"^(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.-]+))?(?:\s+\((?P<remark>.*)\))?$")

_checked: dict[tuple[str, int, int], str] = {}
"""sha256 of files already read in this process, by path, size and modification time."""


@dataclass(frozen=True)
class LocalSet:
    """One entry of a manifest that lm-eval can load."""

    name: str
    ids: tuple[tuple[str, str | None, str], ...]
    """(hub id, config or None, remark) each."""
    configs: tuple[str, ...]
    loader: str
    data_files: Mapping[str, Any]
    also_set: Mapping[str, Any]
    sha256: Mapping[str, str] = field(default_factory=dict)

    def serves(self, dataset_path: str, dataset_name: str | None) -> str | None:
        """The remark (often empty) if these files are that data set and config, else None."""
        for hub_id, config, remark in self.ids:
            if hub_id != dataset_path:
                continue
            if config is not None:
                fits = dataset_name == config
            elif self.configs:
                fits = dataset_name in self.configs
            else:
                fits = dataset_name in (None, "default")
            if fits:
                return remark
        return None


class LocalData:
    """The data sets of one folder. ``notes`` collects remarks on those that were used."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self.notes: list[str] = []
        self._sets = _read(self.folder)

    @classmethod
    def find(cls, data_dir: str | None) -> LocalData | None:
        """The folder given, else that of ``DARE_BENCH_DATA``, else None."""
        chosen = data_dir or os.environ.get(ENVIRONMENT)
        return cls(chosen) if chosen else None

    def redirect(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The task settings that load local files instead of ``config``'s data set; None if the manifest lacks it.

        Raises:
            DataError: a listed file is missing or is not the file that the manifest describes.
        """
        path, name = config.get("dataset_path"), config.get("dataset_name")
        if not isinstance(path, str) or config.get("custom_dataset") is not None:
            return None
        for found in self._sets:
            remark = found.serves(path, name)
            if remark is None:
                continue
            if remark:
                self._note(f"data set {path} is local and not whole: {remark}")
            files = {split: self._files(found, value, name) for split, value in found.data_files.items()}
            return {
                **found.also_set,
                "dataset_path": found.loader,
                "dataset_name": None,
                "dataset_kwargs": {"data_files": files},
            }
        return None

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _files(self, found: LocalSet, value: Any, config: str | None) -> str | list[str]:
        if isinstance(value, list):
            return [self._file(found, part, config) for part in value]
        return self._file(found, value, config)

    def _file(self, found: LocalSet, name: str, config: str | None) -> str:
        relative = name.replace("{config}", config or "")
        path = self.folder / relative
        if not path.is_file():
            raise DataError(
                f"{path}: missing; {self.folder / MANIFEST} lists it for data set {found.name!r}."
                " Restore the file or leave the data set out of the manifest"
            )
        wanted = found.sha256.get(relative)
        if wanted and (seen := _sha256(path)) != wanted:
            raise DataError(
                f"{path}: sha256 is {seen[:12]}..., {self.folder / MANIFEST} says {wanted[:12]}...;"
                " the file was changed or cut short: restore it, or correct the manifest"
            )
        return str(path.resolve())


def _sha256(path: Path) -> str:
    state = path.stat()
    key = (str(path.resolve()), state.st_size, state.st_mtime_ns)
    if key not in _checked:
        with path.open("rb") as file:
            _checked[key] = hashlib.file_digest(file, "sha256").hexdigest()
    return _checked[key]


def _read(folder: Path) -> list[LocalSet]:
    place = folder / MANIFEST
    try:
        manifest = json.loads(place.read_text())
    except OSError as error:
        raise DataError(f"{place}: {error.strerror}; --data-dir needs a folder with a {MANIFEST}") from error
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from error
    listed = manifest.get("datasets") if isinstance(manifest, dict) else None
    if not isinstance(listed, list):
        raise DataError(f"{place}: no list 'datasets'; see the documentation of the manifest")
    return [_local_set(place, entry) for entry in listed if isinstance(entry, dict) and "lm_eval" in entry]


def _local_set(place: Path, entry: dict[str, Any]) -> LocalSet:
    name = str(entry.get("name", "?"))
    try:
        how = entry["lm_eval"]
        data_files = how["dataset_kwargs"]["data_files"]
        ids = [_ID.match(text) for text in entry["hf_ids"]]
        if not isinstance(data_files, dict) or not data_files:
            raise TypeError("data_files is not a mapping of split to file")
        loader = how.get("dataset_path", "json")
        if loader not in LOADERS:
            raise DataError(
                f"{place}: entry {name!r}: lm_eval.dataset_path is {loader!r}; allowed: {', '.join(LOADERS)}"
            )
        return LocalSet(
            name=name,
            ids=tuple((found["id"], found["config"], found["remark"] or "") for found in ids if found),
            configs=tuple(entry.get("configs", ())),
            loader=loader,
            data_files=data_files,
            also_set=how.get("also_set") or {},
            sha256={row["file"]: row["sha256"] for row in entry.get("files", ()) if "sha256" in row},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{place}: entry {name!r} is malformed ({type(error).__name__}: {error});"
            " it needs hf_ids and lm_eval.dataset_kwargs.data_files"
        ) from error
