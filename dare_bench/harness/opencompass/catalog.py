"""Names of OpenCompass's data-set configs, the files behind them and the data sets that those files define.

A config is a Python file below ``opencompass/configs/datasets``; its name is the file's stem (``gsm8k_gen``). Names are
collected from the files' text. :meth:`ConfigCatalog.load` runs a file through mmengine, as OpenCompass does. If several
places have a name: ``--include-path`` before OpenCompass, OpenCompass before ours (those that it lacks).
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import DataError, UnknownNameError, UsageError, suggestion, unknown
from dare_bench.harness.common.answering import error_line, included_folder, package_folder
from dare_bench.harness.common.quiet import is_verbose, silenced
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
    ``only``: a glob over the ``abbr`` of its data sets, None for all; ``origin`` is ``opencompass``, ``dare-bench`` or
    the folder that the user gave."""

    name: str
    path: Path
    only: str | None = None
    origin: str = field(default=OPENCOMPASS, compare=False)
    folder: str = field(default=".", compare=False)
    """Relative to its root; ``.`` is the root itself."""

    @property
    def word(self) -> str:
        """As the user wrote it: ``CONFIG`` or ``CONFIG:ABBR``."""
        return f"{self.name}:{self.only}" if self.only else self.name


def opencompass_folder() -> Path:
    """The folder of OpenCompass's data-set configs, without importing it; raises DareError."""
    return package_folder("opencompass", "OpenCompass") / "configs" / "datasets"


@cache
def _scan(root: Path) -> tuple[Path, ...]:
    """Config files below ``root`` that define or import data sets, sorted."""
    configs = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith((".", "__")))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith("__"):
                path = Path(folder, name)
                with suppress(DataError):  # a FIFO, say
                    if _DEFINES.search(read_source(path, DataError)):
                        configs.append(path)
    return tuple(configs)


class ConfigCatalog:
    """All configs of this run; raises DareError or UsageError."""

    def __init__(self, include_path: Sequence[str | Path] = ()) -> None:
        self._roots: list[tuple[str, Path]] = []
        for folder in include_path:
            root = included_folder(folder, "OpenCompass config files")
            if not _scan(root):
                raise UsageError(
                    f"--include-path {folder}: no config file in this folder (*.py that defines data sets); give the"
                    " folder with the configs, or leave it out"
                )
            self._roots.insert(0, (str(folder), root))  # the last folder overrides, as with lm-eval's tasks
        self._roots += [(OPENCOMPASS, opencompass_folder()), (OURS, _OUR_FOLDER)]

    @cached_property
    def entries(self) -> dict[str, Config]:
        """Every config by name."""
        entries: dict[str, Config] = {}
        taken: set[str] = set()
        for origin, root in self._roots:
            count = Counter(path.stem for path in _scan(root))
            for path in _scan(root):
                if path.stem not in taken:
                    folder = path.parent.relative_to(root).as_posix()
                    name = path.stem if count[path.stem] == 1 else f"{folder}/{path.stem}"
                    entries[name] = Config(name, path, None, origin, folder)
            taken.update(count)
        return entries

    def match(self, patterns: Iterable[str]) -> list[Config]:
        """Configs for the user's patterns, in the order given, without repeats: a name, ``folder/name``, a glob over
        names, the path of a config file; each may end in ``:GLOB``, which selects data sets by their ``abbr``; raises
        UnknownNameError or UsageError."""
        requested: list[Config] = []
        for pattern in patterns:
            name, _, only = pattern.partition(":")
            requested += [replace(config, only=only or None) for config in self._configs(name)]
        return list(dict.fromkeys(requested))

    def is_path(self, word: str) -> bool:
        """Is the word the path of a config file, not a name?"""
        name = word.partition(":")[0]
        return name not in self.entries and name.endswith(".py")

    def _configs(self, name: str) -> list[Config]:
        if name in self.entries:
            return [self.entries[name]]
        if self.is_path(name):
            path = existing(name)
            if path is None or not path.is_file():
                raise UsageError(f"--tasks {name}: no such config file; give its path, or a config's name")
            return [Config(path.stem, path.resolve(), None, str(path.parent))]
        if set("*?[") & set(name):
            if matches := sorted(fnmatch.filter(self.entries, name)):
                return [self.entries[key] for key in matches]
            raise unknown(KIND, name, self.entries)
        folder, slash, stem = name.rpartition("/")  # folder/name is right for every config
        same = [c for c in self.entries.values() if c.path.stem == stem and f"/{c.folder}".endswith(slash + folder)]
        if slash and len(same) == 1:
            return same
        if same:
            raise UnknownNameError(
                f"{KIND} {name!r} is defined in {len(same)} files: {' and '.join(str(config.path) for config in same)};"
                f" choose one: {' or '.join(config.name for config in same)}"
            )
        raise unknown(KIND, name, self.entries)

    def load(self, config: Config) -> list[dict[str, Any]]:
        """The data-set configurations of ``config``, as OpenCompass's ``build_dataset_from_cfg`` takes them; raises
        UnknownNameError or DataError.

        A data set that the file lists under two keys is taken once.
        """
        by_abbr = load_file(config)
        if not by_abbr:
            raise DataError(f"{KIND} {config.name}: {config.path} defines no data set (no list named *{_SUFFIX})")
        matches = fnmatch.filter(by_abbr, config.only or "*")
        if not matches:
            hint = suggestion(config.only or "", by_abbr) or f"; the first is {next(iter(by_abbr))}"
            raise UnknownNameError(
                f"{KIND} {config.name}: none of its {len(by_abbr)} data sets is {config.only!r}{hint}"
            )
        return [by_abbr[abbr] for abbr in matches]


def config_files(folder: Path) -> list[Path]:
    """The config files below ``folder`` if that is one of OpenCompass's, and ours. A user's files are left out: to read
    one is to run it, and only those in ``--tasks`` may run."""
    is_opencompass = folder.resolve().is_relative_to(opencompass_folder().resolve())
    return [*(_scan(folder) if is_opencompass else ()), *_scan(_OUR_FOLDER)]


def load_file(config: Config) -> dict[str, dict[str, Any]]:
    """{abbr: data-set configuration} of one file, whatever its ``only``; raises DataError."""
    from mmengine.config import Config as Reader

    by_abbr: dict[str, dict[str, Any]] = {}
    try:
        with quiet():
            content = Reader.fromfile(str(config.path), format_python_code=False)
            items = [(key, item) for key in content if key.endswith(_SUFFIX) for item in content[key]]
            _import_all(items)
    except (Exception, SystemExit) as error:  # the file is a program, which may raise anything
        raise DataError(
            f"{KIND} {config.name} cannot be loaded: {error_line(error)};"
            f" the file is {config.path}, use another config of that data set"
        ) from error
    for key, item in items:
        if not isinstance(item, dict):
            raise DataError(
                f"{KIND} {config.name}: an entry of {key} in {config.path} must be a dictionary, not {item!r}"
            )
        default = "_".join(str(item[name]) for name in ("path", "name") if name in item)  # as OpenCompass does
        abbr = item.setdefault("abbr", default.replace("/", "_"))
        if by_abbr.setdefault(abbr, item) != item:
            raise DataError(
                f"{KIND} {config.name}: two different data sets of {config.path} have the abbr {abbr!r};"
                " use a config with only one of them"
            )
    return by_abbr


def _import_all(value: Any) -> None:
    """mmengine imports the classes that a config names on access. Access them now: a name that OpenCompass no longer
    has is then an error of this config instead of one in the middle of a run."""
    if isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _import_all(item)


@contextlib.contextmanager
def quiet(notes: list[str] | None = None) -> Iterator[None]:
    """Inside, OpenCompass's log shows nothing: its warnings go to ``notes`` if given, each once, the first dozen.
    Python's warnings, of which importing OpenCompass causes dozens, are ignored too."""
    with warnings.catch_warnings():
        if not is_verbose():
            warnings.simplefilter("ignore")
        from opencompass.utils.logging import get_logger

        with silenced(get_logger(), "OpenCompass", notes):
            yield
