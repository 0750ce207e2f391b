"""Data sets from local files instead of the hub: ``--data-dir DIR`` or ``DARE_BENCH_DATA``.

``DIR/manifest.json`` names them by their hub ids (docs/data.md has its keys). A data set that it does not list comes
from the hub, as in lm-eval. No path enters a task's fingerprint or its results.

A manifest is data, and may be from somebody else: it names files inside its folder and splits, and no part of it is a
template, code, or an address.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator

from dare_bench.config import one_line
from dare_bench.errors import DataError
from dare_bench.reading import check_json_depth, open_regular, read_json

ENVIRONMENT = "DARE_BENCH_DATA"
MANIFEST = "manifest.json"
Loader = Literal["json", "csv", "parquet", "text"]
"""Loaders of the datasets library that read files and run no code of a data set."""
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
"""Keys of a task that a manifest may set: which split is which. All others decide prompts and scores; lm-eval renders
or imports some of them."""
_MAX_FILES = 4096
_ID = re.compile(r"^(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.-]+))?(?:\s+\((?P<note>.*)\))?$")


def _check_inside(name: str) -> str:
    """Check a file name in a manifest: the datasets library would read some others as patterns or addresses."""
    if not name or name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise ValueError("a file is named relative to the data folder and lies inside it")
    if "://" in name or "::" in name or not name.isprintable() or set(name) & set("*?[]\\"):
        raise ValueError("a file is named by its plain path, without * ? [ ] \\, '://', '::' or control characters")
    return name


Name = Annotated[str, AfterValidator(_check_inside)]
Names = Annotated[list[Name], Field(max_length=_MAX_FILES)]
Files = Mapping[str, str | list[str]]
"""By split, one file or several, relative to the folder; ``{config}`` stands for the configuration."""


class _Files(BaseModel):
    data_files: dict[str, Name | Names] = Field(min_length=1)


class _LmEval(BaseModel):
    """How lm-eval loads an entry."""

    dataset_path: Loader = "json"
    dataset_kwargs: _Files
    also_set: dict[str, str | None] = Field(default_factory=dict)

    @field_validator("also_set", mode="before")
    @classmethod
    def _splits_only(cls, value: Any) -> Any:
        others = [key for key in value if key not in SPLITS] if isinstance(value, dict) else []
        if others:
            raise ValueError(f"a manifest cannot set {others[0]!r} of a task; allowed: {', '.join(SPLITS)}")
        return {} if value is None else value


class _Load(BaseModel):
    """The same for an entry that no task of lm-eval uses."""

    dataset_path: Loader = "json"
    data_files: dict[str, Name | Names] = Field(default_factory=dict)


class _Listed(BaseModel):
    file: Name
    sha256: str | None = None


class ManifestEntry(BaseModel):
    """A data set as the manifest describes it."""

    name: str = "?"
    hf_ids: list[str]
    configs: tuple[Name, ...] = ()
    lm_eval: _LmEval | None = None
    load: _Load | None = None
    files: list[_Listed] = Field(default_factory=list)

    @property
    def data_files(self) -> dict[str, str | list[str]]:
        """The files under ``lm_eval`` or ``load``."""
        source = self.lm_eval.dataset_kwargs if self.lm_eval else self.load
        return dict(source.data_files) if source else {}

    @property
    def loader(self) -> Loader:
        return (self.lm_eval or self.load or _Load()).dataset_path

    @cached_property
    def ids(self) -> list[tuple[str, str | None, str]]:
        """(hub id, config or None, note) each."""
        matches = (_ID.match(text) for text in self.hf_ids)
        return [(match["id"], match["config"], match["note"] or "") for match in matches if match]

    @cached_property
    def sha256(self) -> dict[str, str]:
        return {listed.file: listed.sha256 for listed in self.files if listed.sha256 is not None}

    def note_for(self, dataset_path: str, dataset_name: str | None) -> str | None:
        """The note (often empty) if these files are that data set and config, else None."""
        for hub_id, config, note in self.ids:
            names = (config,) if config is not None else self.configs or (None, "default")
            if hub_id == dataset_path and dataset_name in names:
                return note
        return None


class LocalData:
    """The data sets of one folder. ``notes`` collects remarks on those that were used."""

    def __init__(self, folder: str | Path) -> None:
        try:
            self.folder = Path(folder).expanduser()
        except RuntimeError as error:  # ~unknown_user
            raise DataError(f"--data-dir {folder}: {error}; give a folder with a {MANIFEST}") from error
        self.notes: list[str] = []
        self._entries = list(self._read())

    def _read(self) -> Iterator[tuple[ManifestEntry, Files]]:
        """The data sets that lm-eval can load."""
        return ((entry, entry.data_files) for entry in manifest_entries(self.folder, "lm_eval") if entry.lm_eval)

    @classmethod
    def find(cls, data_dir: str | None) -> LocalData | None:
        """The given folder, else that of ``DARE_BENCH_DATA``, else None."""
        folder = data_dir or os.environ.get(ENVIRONMENT)
        return cls(folder) if folder else None

    def lists(self, dataset_path: str | None, dataset_name: str | None) -> bool:
        """Does the manifest list that data set and configuration?"""
        return dataset_path is not None and any(
            entry.note_for(dataset_path, dataset_name) is not None for entry, _ in self._entries
        )

    def redirect(self, config: Mapping[str, Any]) -> dict[str, Any] | None:
        """The task settings that load local files instead of ``config``'s data set; None if the manifest lacks it;
        raises DataError."""
        path, name = config.get("dataset_path"), config.get("dataset_name")
        if not isinstance(path, str) or config.get("custom_dataset") is not None:
            return None
        for entry, data_files in self._entries:
            if (note := entry.note_for(path, name)) is None:
                continue
            text = f"data set {path} is local and incomplete: {note}"
            self.notes += [text] if note and text not in self.notes else []
            files: dict[str, str | list[str]] = {}
            for split, value in data_files.items():
                paths = [self._file(entry, part, name) for part in ([value] if isinstance(value, str) else value)]
                files[split] = paths[0] if isinstance(value, str) else paths
            return {
                **(entry.lm_eval.also_set if entry.lm_eval else {}),
                "dataset_path": entry.loader,
                "dataset_name": None,
                "dataset_kwargs": {"data_files": files},
            }
        return None

    def _path(self, relative: str) -> Path:
        """The path of a file of the manifest; raises DataError if a link leads out of the folder."""
        path = self.folder / relative
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise DataError(
                f"{path}: a link leads out of the data folder, to {path.resolve()}; put the file itself into the folder"
            )
        return path

    def _file(self, entry: ManifestEntry, name: str, config: str | None) -> str:
        relative = name.replace("{config}", config or "")
        path = self._path(relative)
        if not path.is_file():
            state = "not a regular file" if path.exists() else "missing"
            raise DataError(
                f"{path}: {state}; {self.folder / MANIFEST} lists it for data set {entry.name!r}."
                " Restore the file or leave the data set out of the manifest"
            )
        expected = entry.sha256.get(relative)
        if expected and (actual := sha256(path)) != expected:
            raise DataError(
                f"{path}: sha256 is {actual[:12]}..., {self.folder / MANIFEST} says {expected[:12]}...;"
                " the file was changed or cut short: restore it, or correct the manifest"
            )
        if entry.loader == "json":
            check_json_depth(path, DataError)
        return str(path.resolve())


def sha256(path: Path) -> str:
    """The hash of a file, computed once for each of its states (size and modification time)."""
    state = path.stat()
    return _sha256(path.resolve(), state.st_size, state.st_mtime_ns)


@cache
def _sha256(path: Path, size: int, modified: int) -> str:
    with open_regular(path, DataError) as file:
        return hashlib.file_digest(cast(Any, file), "sha256").hexdigest()


def manifest_entries(folder: Path, *kinds: str) -> Iterator[ManifestEntry]:
    """The entries of the folder's manifest that have one of the keys ``kinds``; raises DataError."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        raise DataError(f"{manifest}: No such file or directory; --data-dir needs a folder with a {MANIFEST}")
    listed = read_json(manifest, DataError).get("datasets")
    if not isinstance(listed, list):
        raise DataError(f"{manifest}: no list 'datasets'; see the documentation of the manifest")
    for raw in listed:
        if not isinstance(raw, dict) or not any(kind in raw for kind in kinds):
            continue
        try:
            yield ManifestEntry.model_validate(raw)
        except ValidationError as error:
            entry = f"entry {str(raw.get('name', '?'))[:80]!r}"
            raise DataError(f"{manifest}: {entry} is malformed: {one_line(error, entry)[:800]}; correct it") from error
