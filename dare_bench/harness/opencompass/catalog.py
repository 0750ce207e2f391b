"""Names of OpenCompass's data-set configs, the files behind them and the data sets those files define.

A config is a Python file below ``opencompass/configs/datasets``; its name is the file's stem (``gsm8k_gen``). Names are
found by reading the files' text: a second at most, and OpenCompass is not imported. :meth:`ConfigCatalog.load` runs a
file (it is Python) through mmengine, as OpenCompass does; that imports OpenCompass's data sets, about eight seconds.

Where one name stands in several places: ``--include-path`` before OpenCompass, OpenCompass before ours (ours are only
those that it lacks).
"""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import DareError, DataError, UnknownNameError, UsageError, suggestion, unknown
from dare_bench.harness.opencompass.quiet_opencompass import quiet
from dare_bench.reading import existing, read_source

KIND = "OpenCompass config"
OPENCOMPASS = "opencompass"
OURS = "dare-bench"
_SUFFIX = "_datasets"
_OUR_FOLDER = Path(__file__).parent / "configs" / "datasets"
_DEFINES = re.compile(
    r"^[ \t]*(?:from\s*\S+\s+import\b.*)?\b\w*_datasets\b"  # gsm8k_datasets = [...]; import of a list from a neighbor
    r"|^[ \t]*from\s*\.\S*\s+import\s+\*",  # everything from a neighbor
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Config:
    """A config file. ``name`` is what ``--tasks`` takes: its stem, or ``folder/stem`` where two files share the stem;
    ``origin`` is ``opencompass``, ``dare-bench`` or the folder that the user gave."""

    name: str
    path: Path
    origin: str
    folder: str
    """Below the root it was found in, ``.`` for the root itself."""


@dataclass(frozen=True, slots=True)
class RequestedConfig:
    """A config that a user asked for. ``only``: a glob over the ``abbr`` of its data sets, None for all."""

    name: str
    path: Path
    only: str | None = None

    @property
    def word(self) -> str:
        """As the user wrote it: ``CONFIG`` or ``CONFIG:ABBR``."""
        return f"{self.name}:{self.only}" if self.only else self.name


def opencompass_folder() -> Path:
    """The folder of OpenCompass's data-set configs, found without importing it.

    Raises:
        DareError: OpenCompass is not installed.
    """
    spec = importlib.util.find_spec("opencompass")
    if spec is None or not spec.submodule_search_locations:
        raise DareError("OpenCompass is not installed; install it with: pip install 'dare-bench[eval]'")
    return Path(next(iter(spec.submodule_search_locations))) / "configs" / "datasets"


@cache
def _scan(root: Path) -> tuple[Path, ...]:
    """Config files below ``root`` that define or import data sets, sorted."""
    found = []
    for folder, inside, files in os.walk(root):
        inside[:] = sorted(name for name in inside if not name.startswith((".", "__")))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("__"):
                path = Path(folder, name)
                with suppress(DataError):  # a FIFO, say: no config
                    if _DEFINES.search(read_source(path, DataError)):
                        found.append(path)
    return tuple(found)


class ConfigCatalog:
    """All configs of this run.

    Raises:
        DareError: OpenCompass is not installed.
        UsageError: a folder of ``include_path`` is not there.
    """

    def __init__(self, include_path: Sequence[str | Path] = ()) -> None:
        self._roots: list[tuple[str, Path]] = []
        for folder in include_path:
            root = existing(folder)
            if root is None or not root.is_dir():
                raise UsageError(
                    f"--include-path {folder}: no such folder; give a folder with OpenCompass config files"
                )
            if not _scan(root.resolve()):
                raise UsageError(
                    f"--include-path {folder}: no config file in this folder (*.py that defines data sets); give the"
                    " folder with the configs, or leave it out"
                )
            self._roots.append((str(folder), root.resolve()))
        self._roots.reverse()  # the last folder given wins, as with lm-eval's tasks
        self._roots.append((OPENCOMPASS, opencompass_folder()))
        self._roots.append((OURS, _OUR_FOLDER))

    @cached_property
    def entries(self) -> dict[str, Config]:
        """Every config by name."""
        found: dict[str, Config] = {}
        taken: set[str] = set()
        for origin, root in self._roots:
            stems: dict[str, list[Path]] = {}
            for path in _scan(root):
                stems.setdefault(path.stem, []).append(path)
            for stem, paths in stems.items():
                if stem in taken:
                    continue
                for path in paths:
                    folder = path.parent.relative_to(root).as_posix()
                    name = stem if len(paths) == 1 else f"{folder}/{stem}"
                    found[name] = Config(name, path, origin, folder)
            taken.update(stems)
        return found

    def names(self) -> list[str]:
        """Sorted names."""
        return sorted(self.entries)

    def match(self, patterns: Iterable[str]) -> list[RequestedConfig]:
        """Configs for what a user wrote, in the order given, without repeats: a name, ``folder/name``, a glob over
        names, the path of a config file; each may end in ``:GLOB``, which takes only the data sets whose ``abbr`` fits.

        Raises:
            UnknownNameError: no such config (the three closest are named), or several of that name (their paths are).
            UsageError: a path that is not there.
        """
        found: list[RequestedConfig] = []
        for pattern in patterns:
            name, _, only = pattern.partition(":")
            found += [RequestedConfig(config.name, config.path, only or None) for config in self._configs(name)]
        return list(dict.fromkeys(found))

    def is_path(self, word: str) -> bool:
        """Is that no name, but a config file?"""
        name = word.partition(":")[0]
        return name not in self.entries and name.endswith(".py")

    def _configs(self, name: str) -> list[Config]:
        if name in self.entries:
            return [self.entries[name]]
        if self.is_path(name):
            path = existing(name)
            if path is None or not path.is_file():
                raise UsageError(f"--tasks {name}: no such config file; give its path, or a config's name")
            return [Config(path.stem, path.resolve(), str(path.parent), ".")]
        if set("*?[") & set(name):
            if matched := sorted(fnmatch.filter(self.entries, name)):
                return [self.entries[key] for key in matched]
            raise unknown(KIND, name, self.entries)
        same = [config for config in self.entries.values() if config.path.stem == name]
        if same:
            raise UnknownNameError(
                f"{KIND} {name!r} stands in {len(same)} files: {' and '.join(str(config.path) for config in same)};"
                f" say which: {' or '.join(config.name for config in same)}"
            )
        if "/" in name:  # folder/name is right for every config, not only where the stem is shared
            folder, stem = name.rsplit("/", 1)
            same = [c for c in self.entries.values() if c.path.stem == stem and _below(folder, c.folder)]
            if len(same) == 1:
                return same
        raise unknown(KIND, name, self.entries)

    def load(self, wanted: RequestedConfig) -> list[dict[str, Any]]:
        """The data-set configurations of ``wanted``, as OpenCompass's own ``build_dataset_from_cfg`` takes them.

        A data set that the file lists under two keys is taken once.

        Raises:
            UnknownNameError: ``only`` fits none of its data sets.
            DataError: the file cannot be loaded, defines no data set, or two different ones of one ``abbr``.
        """
        found = load_file(wanted)
        if not found:
            raise DataError(f"{KIND} {wanted.name}: {wanted.path} defines no data set (no list named *{_SUFFIX})")
        if wanted.only is None:
            return list(found.values())
        taken = [config for abbr, config in found.items() if fnmatch.fnmatchcase(abbr, wanted.only)]
        if not taken:
            near = suggestion(wanted.only, found) or f"; the first is {next(iter(found))}"
            raise UnknownNameError(f"{KIND} {wanted.name}: none of its {len(found)} data sets is {wanted.only!r}{near}")
        return taken


def _below(folder: str, where: str) -> bool:
    """``folder`` is the end of the folder path ``where``: ``humaneval`` or ``a/humaneval``."""
    return where == folder or where.endswith(f"/{folder}")


def config_files(beside: Path) -> list[Path]:
    """The config files below ``beside`` where that is OpenCompass's own, and ours. A user's are left alone: reading one
    means running it, and nobody asked for more than those that ``--tasks`` names."""
    theirs = beside.resolve().is_relative_to(opencompass_folder().resolve())
    return [*(_scan(beside) if theirs else ()), *_scan(_OUR_FOLDER)]


def load_file(wanted: RequestedConfig) -> dict[str, dict[str, Any]]:
    """{abbr: data-set configuration} of one file, whatever its ``only``.

    Raises:
        DataError: as :meth:`ConfigCatalog.load`.
    """
    from mmengine.config import Config as Reader

    found: dict[str, dict[str, Any]] = {}
    try:
        with quiet():
            read = Reader.fromfile(str(wanted.path), format_python_code=False)
            listed = [(key, item) for key in read if key.endswith(_SUFFIX) for item in read[key]]
            _import_all(listed)
    except (Exception, SystemExit) as error:  # the file is a program: anything can come out of it
        reason = " ".join(str(error).split())[:300] or "no reason given"
        raise DataError(
            f"{KIND} {wanted.name} cannot be loaded: {type(error).__name__}: {reason};"
            f" the file is {wanted.path}, take another config of that data set"
        ) from error
    for key, item in listed:
        if not isinstance(item, dict):
            raise DataError(f"{KIND} {wanted.name}: an entry of {key} in {wanted.path} is no dictionary, but {item!r}")
        abbr = item.setdefault("abbr", _made_up(item))
        if found.setdefault(abbr, item) != item:
            raise DataError(
                f"{KIND} {wanted.name}: two different data sets of {wanted.path} have the abbr {abbr!r};"
                " take a config with only one of them"
            )
    return found


def _made_up(config: Mapping[str, Any]) -> str:
    """The ``abbr`` that OpenCompass gives a data set without one."""
    return "_".join(str(config[key]) for key in ("path", "name") if key in config).replace("/", "_")


def _import_all(value: Any) -> None:
    """mmengine imports the classes that a config names when they are looked at. Look now: a name that OpenCompass no
    longer has is an error of this config, and not one in the middle of a run."""
    if isinstance(value, dict):
        for inner in value.values():
            _import_all(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _import_all(inner)
