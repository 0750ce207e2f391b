"""Local data where OpenCompass's loaders look for it, and no download behind anybody's back.

OpenCompass reads ``$COMPASS_DATA_CACHE/data/...`` and, where a file is missing there, downloads an archive. Here a data
set is looked for in this order, and a missing one is an error before anything is generated:

1. ``--data-dir DIR`` (or ``DARE_BENCH_DATA``): what DIR's manifest lists is written in OpenCompass's formats into a
   cache of ours, once per content, data set by data set as they are asked for. DIR itself is never written to.
2. ``COMPASS_DATA_CACHE`` if the user has set it; what happens there is OpenCompass's own doing, downloads included.
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

from dare_bench.errors import DareError, DataError
from dare_bench.fingerprint import cache_dir
from dare_bench.harness.common.local_data import ENVIRONMENT, without_scripts
from dare_bench.harness.opencompass.manifest_rows import ManifestRows
from dare_bench.harness.opencompass.shapes import LOCAL_FORMATS, remarks, write

ROOT = "COMPASS_DATA_CACHE"
_SOURCE = "DATASET_SOURCE"
_VERSION = 1
"""Counts up when a shape is written differently, so that caches of older versions are left alone."""
_GPQA = (
    "GPQA is gated, and its authors ask that no plain copies are passed on: accept its terms at"
    " https://huggingface.co/datasets/Idavidrein/gpqa, download the file there, and put it at"
)
_BY_NAME = ("BBH", "OlympiadBench", "ceval", "gpqa", "mmlu")
"""Entries of ``data/`` with a file for each data set, which has the data set's ``name`` in its own."""


@dataclass
class Layout:
    """Where OpenCompass finds its data in this run."""

    root: Path | None
    """The folder that stands for ``COMPASS_DATA_CACHE``: loaders read ``root/data/...``. None: the current folder."""
    bench: ManifestRows | None = None
    """The manifest's data sets, None without ``--data-dir``."""
    notes: list[str] = field(default_factory=list)
    """Remarks on data that was used: subsets, substitutes."""
    _ready: set[str] = field(default_factory=set)

    @property
    def folders(self) -> list[str]:
        """Where data may lie, the folders that exist."""
        places = [self.root, os.environ.get(ROOT), Path.cwd() / "data", Path("~/.cache/opencompass").expanduser()]
        return [str(place) for place in places if place is not None and Path(place).is_dir()]

    def build(self, config: Mapping[str, Any]) -> Any:
        """OpenCompass's data set object (``.train``, ``.test``, ``.reader``) for a data-set configuration.

        Raises:
            DataError: its data is nowhere, or is not what the loader expects; the message says what to do.
        """
        missing: OSError | None = None
        for root, guarded in self._places(config):
            try:
                with self.reading(root, guarded):
                    return _build(config)
            except FileNotFoundError as error:
                missing = missing or error
            except DareError:
                raise
            except Exception as error:  # loaders run what they please on what they read
                raise DataError(
                    f"OpenCompass data set {_name(config)} cannot be loaded: {_reason(error)}; it looked in"
                    f" {root or Path.cwd()}"
                ) from error
        raise DataError(self._absent(config, missing)) from missing

    def absent(self, config: Mapping[str, Any]) -> str | None:
        """Why a data set cannot be built, as far as files tell: no file of it is anywhere. None where one is, and where
        only its loader knows which files it reads or fetches. What the manifest has of it is laid out."""
        if not _is_known(config):
            return None
        for root, guarded in self._places(config):
            if not guarded or _is_there((root or Path()) / _local(config), config):
                return None
        return self._absent(config, None)

    @contextlib.contextmanager
    def reading(self, root: Path | None = None, guarded: bool = True) -> Iterator[None]:
        """Within it OpenCompass reads below ``root`` (this layout's own by default); ``guarded``: a missing file is a
        FileNotFoundError instead of a download."""
        from opencompass.utils import datasets as module

        before = {name: os.environ.get(name) for name in (ROOT, _SOURCE)}
        download = module.download_dataset
        root = self.root if root is None else root
        if root is None:
            os.environ.pop(ROOT, None)
        else:
            os.environ[ROOT] = str(root)
        if self.bench is not None and root == self.root:
            os.environ.pop(_SOURCE, None)  # a hub named there would be read instead of our files
        if guarded:
            module.download_dataset = _no_download
        try:
            yield
        finally:
            module.download_dataset = download
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _places(self, config: Mapping[str, Any]) -> Iterator[tuple[Path | None, bool]]:
        """(root, whether downloads are prevented) in the order of the module's docstring."""
        if self.bench is not None and self.root is not None and self._prepare(config):
            yield self.root, True
        if own := os.environ.get(ROOT):
            yield Path(own), False
        else:
            yield Path(), True
            with contextlib.suppress(RuntimeError):  # nobody's home: containers run under bare user ids
                yield Path.home() / ".cache" / "opencompass", True

    def _prepare(self, config: Mapping[str, Any]) -> bool:
        """Writes the entry of ``data/`` that the data set reads, if the manifest has it; True if it is there."""
        name = _entry(config)
        if name not in LOCAL_FORMATS or self.bench is None or self.root is None:
            return False
        target = self.root / "data" / name
        if name not in self._ready:
            for ids in LOCAL_FORMATS[name].ids:
                self.bench.check(*ids)
            if not target.exists():
                _make(name, self.bench, target)
            self._ready.add(name)
        found = [*self.bench.notes, *remarks(_local(config), self.bench)]
        self.notes += [note for note in found if note not in self.notes]
        return target.exists()

    def _absent(self, config: Mapping[str, Any], missing: OSError | None) -> str:
        name = _entry(config)
        file = _below_data(missing, config)
        start = f"no local data for OpenCompass data set {_name(config)}: {file} is missing"
        own = os.environ.get(ROOT)
        place = f"{own or '.'}/{file}"
        if "gpqa" in file.lower():
            return f"{start}. {_GPQA} {place}" + ("" if own else f" (or below a folder that {ROOT} names)")
        ways = [f"put it at {place}" + ("" if own else f" (or set {ROOT} to a folder that has it)")]
        if name in self._ready and self.root is not None and (self.root / "data" / name).exists():
            part = "--tasks 'CONFIG:ABBR', in place of --recipe where that was given, runs only the data sets ABBR"
            ways.insert(0, f"{self._folder} has another part of data/{name}: {part}")
        elif name in LOCAL_FORMATS:
            ids = " or ".join(hub_id for group in LOCAL_FORMATS[name].ids for hub_id in group)
            given = f"{self._folder} lacks it" if self.bench else "--data-dir DIR"
            ways.insert(0, f"{given}: a manifest entry for {ids}, with the splits and configs it reads, would serve")
        return f"{start}; {'; or '.join(ways)}"

    @property
    def _folder(self) -> str:
        return f"the manifest of {self.bench.folder}" if self.bench else ""


def lay_out(data_dir: str | Path | None) -> Layout:
    """The layout for a folder with a manifest (``DARE_BENCH_DATA`` where None is given), or for no folder at all.

    Nothing is written yet: each data set is when it is asked for (:meth:`Layout.build`).

    Raises:
        DataError: there is no manifest in the folder, or it cannot be read.
    """
    chosen = data_dir or os.environ.get(ENVIRONMENT)
    if not chosen:
        own = os.environ.get(ROOT)
        return Layout(Path(own) if own else None)
    bench = ManifestRows(chosen)
    return Layout(_root(f"{bench.key()}-v{_VERSION}"), bench)


def _root(key: str) -> Path:
    """The cache folder of one content; a temporary one where the cache cannot be written."""
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


def _make(name: str, bench: ManifestRows, target: Path) -> None:
    """Writes beside ``target`` and renames: a reader never sees half a data set, and of two writers one wins."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        made = Path(folder, name)
        try:
            write(name, bench, made)
            if made.exists():
                made.rename(target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and target.exists():
                return  # the other process was first, with the same content
            shutil.rmtree(made, ignore_errors=True)
            raise DataError(
                f"{target}: cannot be written ({error.strerror or error}); free or name a folder with DARE_BENCH_CACHE"
            ) from error


def _build(config: Mapping[str, Any]) -> Any:
    from opencompass.utils import build_dataset_from_cfg

    with without_scripts():
        return build_dataset_from_cfg(config)


def _no_download(data_path: str, *_: Any, **__: Any) -> str:
    """Stands in for OpenCompass's ``download_dataset``."""
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), data_path)


def _local(config: Mapping[str, Any]) -> str:
    """The path below the root that a data set's ``path`` stands for."""
    from opencompass.utils.datasets_info import DATASETS_MAPPING

    path = str(config.get("path", ""))
    return os.path.normpath(DATASETS_MAPPING.get(path, {}).get("local") or path)


def _entry(config: Mapping[str, Any]) -> str:
    """The first part below ``data/``, empty for a path that is not below it."""
    parts = Path(_local(config)).parts
    return parts[1] if len(parts) > 1 and parts[0] == "data" else ""


def _is_known(config: Mapping[str, Any]) -> bool:
    """Is the path below ``data/`` where its files are? Else it may be a prefix of them, or a hub's name for them."""
    from opencompass.utils.datasets_info import DATASETS_MAPPING

    if os.environ.get(_SOURCE) or not _entry(config):
        return False
    return str(config.get("path", "")) in DATASETS_MAPPING or _entry(config) in (*LOCAL_FORMATS, *_BY_NAME)


def _is_there(place: Path, config: Mapping[str, Any]) -> bool:
    name = config.get("name")
    if place.is_dir() and _entry(config) in _BY_NAME and isinstance(name, str):
        return any(name in path.name for path in place.rglob("*"))
    return place.exists()


def _below_data(missing: OSError | None, config: Mapping[str, Any]) -> str:
    """``data/gsm8k/train.jsonl`` from what a loader could not open, whatever root it was below."""
    named = str(getattr(missing, "filename", None) or missing or "")
    at = named.replace("\\", "/").find("data/" + _entry(config)) if _entry(config) else -1
    seen = os.path.normpath(named[at:].split("'")[0]) if at >= 0 else ""
    local = _local(config)
    name = config.get("name") or config.get("file_name")
    if seen in ("", local) and isinstance(name, str) and Path(name).suffix:
        return str(Path(local) / name)
    return seen or local


def _name(config: Mapping[str, Any]) -> str:
    return str(config.get("abbr", config.get("path", "?")))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300] or 'no reason given'}"
