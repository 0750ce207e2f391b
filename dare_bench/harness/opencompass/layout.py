"""Local data at the paths of OpenCompass's loaders, without unrequested downloads.

OpenCompass reads ``$COMPASS_DATA_CACHE/data/...`` and, if a file is missing there, downloads an archive. Here a data
set is searched in this order, and a missing one is an error before anything is generated:

1. ``--data-dir DIR`` (or ``DARE_BENCH_DATA``): what DIR's manifest lists is written in OpenCompass's formats into a
   cache of ours, once per content, each data set on first use. DIR itself is never written to.
2. ``COMPASS_DATA_CACHE`` if the user has set it; there OpenCompass does as it always does, downloads included.
3. Otherwise ``./data``, then ``~/.cache/opencompass/data``, as OpenCompass itself does.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.cache import cache_dir
from dare_bench.errors import DareError, DataError
from dare_bench.harness.common.answering import error_line
from dare_bench.harness.common.by_name import by_name, origin
from dare_bench.harness.common.local_data import ENVIRONMENT, MANIFEST
from dare_bench.harness.common.quiet import replaced
from dare_bench.harness.opencompass.manifest_rows import ManifestRows
from dare_bench.harness.opencompass.shapes import LOCAL_FORMATS, remarks, write

ROOT = "COMPASS_DATA_CACHE"
_SOURCE = "DATASET_SOURCE"
_VERSION = 1
"""Incremented when a format is written differently, so that caches of older versions are not used."""
_GPQA = (
    "GPQA is gated, and its authors ask that no plain copies are passed on: accept its terms at"
    " https://huggingface.co/datasets/Idavidrein/gpqa, download the file there, and put it at"
)
_BY_NAME = ("BBH", "OlympiadBench", "ceval", "gpqa", "mmlu")
"""Entries of ``data/`` with a file for each data set, whose name contains the data set's ``name``."""


@dataclass
class Layout:
    """The data folders of OpenCompass in this run."""

    root: Path | None
    """The folder that replaces ``COMPASS_DATA_CACHE``: loaders read ``root/data/...``. None: the current folder."""
    bench: ManifestRows | None = None
    """The manifest's data sets, None without ``--data-dir``."""
    notes: list[str] = field(default_factory=list)
    """Notes on data that was used: subsets, substitutes."""
    origins: dict[str, str] = field(default_factory=dict)
    """By data set, where its files are."""
    _ready: set[str] = field(default_factory=set)

    @property
    def folders(self) -> list[str]:
        """The existing folders that may contain data."""
        folders = [self.root, os.environ.get(ROOT), Path.cwd() / "data", Path("~/.cache/opencompass").expanduser()]
        return [str(folder) for folder in folders if folder is not None and Path(folder).is_dir()]

    def build(self, config: Mapping[str, Any]) -> Any:
        """OpenCompass's data set object (``.train``, ``.test``, ``.reader``) for a data-set configuration; raises
        DataError."""
        from opencompass.utils import build_dataset_from_cfg

        missing: OSError | None = None
        for root, offline in self._roots(config):
            try:
                with self.reading(root, offline), by_name():
                    built = build_dataset_from_cfg(config)
                self._note_origin(config, root, built)
                return built
            except FileNotFoundError as error:
                missing = missing or error
            except DareError:
                raise
            except Exception as error:  # a loader may raise anything
                raise DataError(
                    f"OpenCompass data set {_name(config)} cannot be loaded: {error_line(error)}; it looked in {root}"
                ) from error
        raise DataError(self._missing_message(config, missing)) from missing

    def _note_origin(self, config: Mapping[str, Any], root: Path, built: Any) -> None:
        if text := origin(built.test):
            self.origins[_name(config)] = text
        elif self.bench is not None and root == self.root:
            self.origins[_name(config)] = str(self.bench.folder / MANIFEST)
        elif (place := root / _local(config)).exists():
            self.origins[_name(config)] = str(place.resolve())

    def missing(self, config: Mapping[str, Any]) -> str | None:
        """The reason why a data set cannot be built, judged by files: none of its files exists. None if one does, or if
        only its loader knows which files it reads or downloads. Writes what the manifest has of it."""
        if not _is_known(config):
            return None
        name = config.get("name") if _entry(config) in _BY_NAME else None
        for root, offline in self._roots(config):
            path = root / _local(config)
            in_folder = path.is_dir() and isinstance(name, str)
            exists = any(str(name) in file.name for file in path.rglob("*")) if in_folder else path.exists()
            if exists or not offline:
                return None
        return self._missing_message(config, None)

    @contextlib.contextmanager
    def reading(self, root: Path, offline: bool) -> Iterator[None]:
        """Inside, OpenCompass reads below ``root``; ``offline``: a missing file is a FileNotFoundError instead of a
        download."""
        from opencompass.utils import datasets as module

        before = {name: os.environ.pop(name) for name in (ROOT, _SOURCE) if name in os.environ}
        os.environ[ROOT] = str(root)
        if _SOURCE in before and (self.bench is None or root != self.root):
            os.environ[_SOURCE] = before[_SOURCE]  # for our files, a hub named there would be read instead
        try:
            with replaced(module, download_dataset=_no_download) if offline else contextlib.nullcontext():
                yield
        finally:
            for name in (ROOT, _SOURCE):
                os.environ.pop(name, None)
            os.environ.update(before)

    def _roots(self, config: Mapping[str, Any]) -> Iterator[tuple[Path, bool]]:
        """(root, whether downloads are prevented) in the order of the module's docstring."""
        if self.root is not None and self._prepare(config, self.root):
            yield self.root, True
        if users := os.environ.get(ROOT):
            yield Path(users), False
        else:
            yield Path(), True
            with contextlib.suppress(RuntimeError):  # no home: containers run under user ids without a name
                yield Path.home() / ".cache" / "opencompass", True

    def _prepare(self, config: Mapping[str, Any], root: Path) -> bool:
        """Writes the entry of ``data/`` that the data set reads, if the manifest has it; True if it exists."""
        name = _entry(config)
        if name not in LOCAL_FORMATS or self.bench is None:
            return False
        target = root / "data" / name
        if name not in self._ready:
            for ids in LOCAL_FORMATS[name].ids:
                self.bench.check(*ids)
            if not target.exists():
                _write(name, self.bench, target)
            self._ready.add(name)
        notes = [*self.bench.notes, *remarks(_local(config), self.bench)]
        self.notes += [note for note in notes if note not in self.notes]
        return target.exists()

    def _missing_message(self, config: Mapping[str, Any], missing: OSError | None) -> str:
        name = _entry(config)
        file = _below_data(missing, config)
        start = f"no local data for OpenCompass data set {_name(config)}: {file} is missing"
        users = os.environ.get(ROOT)
        path = f"{users or '.'}/{file}"
        if "gpqa" in file.lower():
            return f"{start}. {_GPQA} {path}" + ("" if users else f" (or below a folder that {ROOT} names)")
        ways = [f"put it at {path}" + ("" if users else f" (or set {ROOT} to a folder that has it)")]
        manifest = f"the manifest of {self.bench.folder}" if self.bench else ""
        if name in self._ready and self.root is not None and (self.root / "data" / name).exists():
            part = "--tasks 'CONFIG:ABBR', in place of --recipe where that was given, runs only the data sets ABBR"
            ways.insert(0, f"{manifest} has a different part of data/{name}: {part}")
        elif name in LOCAL_FORMATS:
            ids = " or ".join(hub_id for group in LOCAL_FORMATS[name].ids for hub_id in group)
            source = f"{manifest} lacks it" if self.bench else "--data-dir DIR"
            ways.insert(0, f"{source}: a manifest entry for {ids}, with the splits and configs it reads, would serve")
        return f"{start}; {'; or '.join(ways)}"


def lay_out(data_dir: str | Path | None) -> Layout:
    """The layout for a folder with a manifest (``DARE_BENCH_DATA`` if None is given), or without a folder; raises
    DataError.

    Nothing is written yet: each data set is on its first use (:meth:`Layout.build`).
    """
    folder = data_dir or os.environ.get(ENVIRONMENT)
    if not folder:
        users = os.environ.get(ROOT)
        return Layout(Path(users) if users else None)
    bench = ManifestRows(folder)
    return Layout(_root(f"{bench.key()}-v{_VERSION}"), bench)


def _root(key: str) -> Path:
    """The cache folder for one content; a temporary one if the cache cannot be written."""
    root = cache_dir() / "opencompass-data" / key
    try:
        root.joinpath("data").mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError:
        root = Path(tempfile.mkdtemp(prefix="dare-bench-opencompass-"))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        root.joinpath("data").mkdir()
    return root.absolute()


def _write(name: str, bench: ManifestRows, target: Path) -> None:
    """Writes to a temporary folder and renames it: a reader never sees an incomplete data set, and of two writers one
    succeeds."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        written = Path(folder, name)
        try:
            write(name, bench, written)
            if written.exists():
                written.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and target.exists():
                return  # another process was first, with the same content
            shutil.rmtree(written, ignore_errors=True)
            raise DataError(
                f"{target}: cannot be written ({error.strerror or error}); free or name a folder with DARE_BENCH_CACHE"
            ) from error


def _no_download(data_path: str, *_: Any, **__: Any) -> str:
    """Replaces OpenCompass's ``download_dataset``."""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), data_path)


def _local(config: Mapping[str, Any]) -> str:
    """The path below the root of a data set's ``path``."""
    from opencompass.utils.datasets_info import DATASETS_MAPPING

    path = str(config.get("path", ""))
    return os.path.normpath(DATASETS_MAPPING.get(path, {}).get("local") or path)


def _entry(config: Mapping[str, Any]) -> str:
    """The first part below ``data/``, empty for a path that is not below it."""
    parts = Path(_local(config)).parts
    return parts[1] if len(parts) > 1 and parts[0] == "data" else ""


def _is_known(config: Mapping[str, Any]) -> bool:
    """Are its files at the path below ``data/``? Otherwise that may be their prefix, or a hub's name for them."""
    from opencompass.utils.datasets_info import DATASETS_MAPPING

    if os.environ.get(_SOURCE) or not _entry(config):
        return False
    return str(config.get("path", "")) in DATASETS_MAPPING or _entry(config) in (*LOCAL_FORMATS, *_BY_NAME)


def _below_data(missing: OSError | None, config: Mapping[str, Any]) -> str:
    """``data/gsm8k/train.jsonl`` from the path that a loader could not open, below any root."""
    path = str(getattr(missing, "filename", None) or missing or "")
    start = path.replace("\\", "/").find("data/" + _entry(config)) if _entry(config) else -1
    seen = os.path.normpath(path[start:].split("'")[0]) if start >= 0 else ""
    local = _local(config)
    name = config.get("name") or config.get("file_name")
    if seen in ("", local) and isinstance(name, str) and Path(name).suffix:
        return str(Path(local) / name)
    return seen or local


def _name(config: Mapping[str, Any]) -> str:
    return str(config.get("abbr", config.get("path", "?")))
