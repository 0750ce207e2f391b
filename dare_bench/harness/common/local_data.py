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
            "also_set": {"training_split": null}     # splits of the task to rename or leave out (optional)
        },
        "files": [{"file": "mmlu/anatomy/test.jsonl.gz", "sha256": "..."}]     # checked where given (optional)
    }]}

Files may be gzip-compressed. Other keys are ignored. A data set that the manifest does not list comes from the hub, as
lm-eval does it. A task is the same task wherever its data came from: no path enters its fingerprint or its results.

A manifest is data, and may be somebody else's: it names files inside its folder and splits, and no part of it is a
template, code, or an address.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import AfterValidator, BaseModel, Field, ValidationError, field_validator

from dare_bench.config import one_line
from dare_bench.errors import DataError
from dare_bench.harness.common.replaced import replaced
from dare_bench.reading import check_json_depth, open_regular, read_json

ENVIRONMENT = "DARE_BENCH_DATA"
MANIFEST = "manifest.json"
Loader = Literal["json", "csv", "parquet", "text"]
"""Loaders of the datasets library that read files and run no code of a data set."""
SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
"""Keys of a task that a manifest may set: which split is which. All others decide what is asked and how it is scored;
lm-eval renders or imports some of them."""
_MOST_FILES = 4096
_ID = re.compile(r"^(?P<id>[\w.-]+(?:/[\w.-]+)?)(?::(?P<config>[\w.-]+))?(?:\s+\((?P<remark>.*)\))?$")


def _inside(name: str) -> str:
    """A file's name as a manifest may give it: the datasets library would take another for a pattern or an address."""
    if not name or name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise ValueError("a file is named relative to the data folder and lies inside it")
    if "://" in name or "::" in name or not name.isprintable() or set(name) & set("*?[]\\"):
        raise ValueError("a file is named by its plain path, without * ? [ ] \\, '://', '::' or control characters")
    return name


def _some(names: list[str]) -> list[str]:
    if len(names) > _MOST_FILES:
        raise ValueError(f"{len(names):,} files; a split has at most {_MOST_FILES:,}")
    return names


Name = Annotated[str, AfterValidator(_inside)]
Names = Annotated[list[Name], AfterValidator(_some)]


class _Files(BaseModel):
    data_files: dict[str, Name | Names] = Field(min_length=1)


class _LmEval(BaseModel):
    """How lm-eval loads an entry."""

    dataset_path: Loader = "json"
    dataset_kwargs: _Files
    also_set: dict[str, str | None] = Field(default_factory=dict)

    @field_validator("also_set", mode="before")
    @classmethod
    def _splits_alone(cls, value: Any) -> Any:
        others = [key for key in value if key not in SPLITS] if isinstance(value, dict) else []
        if others:
            raise ValueError(f"a manifest cannot set {others[0]!r} of a task; allowed are {', '.join(SPLITS)}")
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

    def served(self, data_files: Mapping[str, str | list[str]]) -> LocalSet:
        """This data set, with these files."""
        ids = [_ID.match(text) for text in self.hf_ids]
        return LocalSet(
            name=self.name,
            ids=tuple((found["id"], found["config"], found["remark"] or "") for found in ids if found),
            configs=self.configs,
            loader=(self.lm_eval or self.load or _Load()).dataset_path,
            data_files=data_files,
            also_set=self.lm_eval.also_set if self.lm_eval else {},
            sha256={row.file: row.sha256 for row in self.files if row.sha256 is not None},
        )


_checked: dict[tuple[str, int, int], str] = {}
"""sha256 of files already read in this process, by path, size and modification time."""


@dataclass(frozen=True)
class LocalSet:
    """One entry of a manifest whose files can be loaded."""

    name: str
    ids: tuple[tuple[str, str | None, str], ...]
    """(hub id, config or None, remark) each."""
    configs: tuple[str, ...]
    loader: str
    data_files: Mapping[str, str | list[str]]
    also_set: Mapping[str, str | None]
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
        try:
            self.folder = Path(folder).expanduser()
        except RuntimeError as error:  # ~somebody
            raise DataError(f"--data-dir {folder}: {error}; give a folder with a {MANIFEST}") from error
        self.notes: list[str] = []
        self._sets = list(self._read())

    def _read(self) -> Iterator[LocalSet]:
        """The data sets that lm-eval can load."""
        for entry in entries(self.folder, "lm_eval"):
            if entry.lm_eval is not None:
                yield entry.served(entry.lm_eval.dataset_kwargs.data_files)

    @classmethod
    def find(cls, data_dir: str | None) -> LocalData | None:
        """The folder given, else that of ``DARE_BENCH_DATA``, else None."""
        chosen = data_dir or os.environ.get(ENVIRONMENT)
        return cls(chosen) if chosen else None

    def lists(self, dataset_path: str | None, dataset_name: str | None) -> bool:
        """Does the manifest list that data set and configuration?"""
        return dataset_path is not None and any(
            one.serves(dataset_path, dataset_name) is not None for one in self._sets
        )

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

    def _place(self, relative: str) -> Path:
        """Where a file of the manifest is; raises DataError where a link leads out of the folder."""
        path = self.folder / relative
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise DataError(
                f"{path}: a link leads out of the data folder, to {path.resolve()}; put the file itself into the folder"
            )
        return path

    def _file(self, found: LocalSet, name: str, config: str | None) -> str:
        relative = name.replace("{config}", config or "")
        path = self._place(relative)
        if not path.is_file():
            what = "not a regular file" if path.exists() else "missing"
            raise DataError(
                f"{path}: {what}; {self.folder / MANIFEST} lists it for data set {found.name!r}."
                " Restore the file or leave the data set out of the manifest"
            )
        wanted = found.sha256.get(relative)
        if wanted and (seen := _sha256(path)) != wanted:
            raise DataError(
                f"{path}: sha256 is {seen[:12]}..., {self.folder / MANIFEST} says {wanted[:12]}...;"
                " the file was changed or cut short: restore it, or correct the manifest"
            )
        if found.loader == "json":
            check_json_depth(path, DataError)
        return str(path.resolve())


@contextlib.contextmanager
def without_scripts() -> Iterator[None]:
    """Within it the datasets library runs no data set's own script, whatever a task file or a harness asks for; such a
    data set is an error."""
    from datasets import load

    def refuse(asked: bool | None, name: str) -> bool:
        raise DataError(
            f"data set {name!r} is loaded by a script of its own, which dare-bench never runs; convert it to JSON, CSV"
            " or Parquet files and name them in a manifest (--data-dir)"
        )

    with replaced(load, resolve_trust_remote_code=refuse):
        yield


def _sha256(path: Path) -> str:
    state = path.stat()
    key = (str(path.resolve()), state.st_size, state.st_mtime_ns)
    if key not in _checked:
        with open_regular(path, DataError) as file:
            _checked[key] = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
    return _checked[key]


def entries(folder: Path, *kinds: str) -> Iterator[ManifestEntry]:
    """The entries of the folder's manifest that have one of the keys ``kinds``.

    Raises:
        DataError: the manifest cannot be read, or says of an entry what no manifest can.
    """
    place = folder / MANIFEST
    if not place.exists():
        raise DataError(f"{place}: No such file or directory; --data-dir needs a folder with a {MANIFEST}")
    listed = read_json(place, DataError).get("datasets")
    if not isinstance(listed, list):
        raise DataError(f"{place}: no list 'datasets'; see the documentation of the manifest")
    for raw in listed:
        if not isinstance(raw, dict) or not any(kind in raw for kind in kinds):
            continue
        try:
            yield ManifestEntry.model_validate(raw)
        except ValidationError as error:
            what = f"entry {str(raw.get('name', '?'))[:80]!r}"
            raise DataError(f"{place}: {what} is malformed: {one_line(error, what)[:800]}; correct it") from error
