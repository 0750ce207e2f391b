"""Names of lm-eval tasks, groups and tags, and the YAML files behind them, without importing lm-eval.

Sources, later ones override as in lm-eval: lm-eval's folder (cached in a file per version of lm-eval), the folders that
the registry has as ``task_folder``, ``--include-path`` in the order given.
"""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dare_bench.cache import cache_dir, write_cache
from dare_bench.errors import DataError, UsageError, unknown
from dare_bench.harness.common.answering import included_folder, package_folder
from dare_bench.harness.common.requests import ROLLING, undefined
from dare_bench.harness.lm_eval.task_files import names_of, scan
from dare_bench.reading import existing, read_json
from dare_bench.registry import registry

LM_EVAL = "lm-eval"
_FORMAT = 3
_LIKELIHOODS = ("loglikelihood", ROLLING, "multiple_choice")
"""Values of a task's ``output_type``."""


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """A name: ``kind`` is task, python (a task written as a class), group or tag; ``file`` is its YAML file (None for
    a tag); ``origin`` is its source (``lm-eval`` or a folder's name); ``members`` are the names in a group or tag;
    ``data_set`` is a task's data set with its configuration."""

    name: str
    kind: str
    file: str | None  # a path made for each of many thousands of names would take longer than reading them
    origin: str
    members: Sequence[str] = ()
    output_type: str | None = None
    data_set: Sequence[str | None] = (None, None)

    @property
    def path(self) -> Path | None:
        """``file`` as a path."""
        return None if self.file is None else Path(self.file)


def lm_eval_folder() -> Path:
    """The folder of lm-eval's task files, without importing lm-eval; raises DareError if it is missing."""
    return package_folder("lm_eval", "lm-eval") / "tasks"


def _scanned(root: Path, unreadable: dict[str, DataError], without: Collection[str] = ()) -> dict[str, list[Any]]:
    """{name: [kind, relative path or None, further fields of a TaskEntry]} of one folder; the first of two equal names
    stays. ``unreadable`` gets the errors of files that cannot be read, by path."""
    names: dict[str, list[Any]] = {}
    for name, kind, relative, keys in scan(root, unreadable, without):
        if name in names:
            continue
        if kind == "group":
            names[name] = [kind, relative, list(_names_in(keys.get("task")))]
            continue
        facts = [_text(keys.get(key)) for key in ("output_type", "dataset_path", "dataset_name")]
        names[name] = [kind, relative, [], *([facts[0], facts[1:]] if kind == "task" else ())]
        for tag in names_of(keys.get("tag")):
            names.setdefault(tag, ["tag", None, []])[2].append(name)
    for kind, _, members, *_ in names.values():
        if kind == "tag":
            members.sort()
    return names


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _entries(root: Path, origin: str, names: dict[str, list[Any]]) -> dict[str, TaskEntry]:
    return {
        name: TaskEntry(name, kind, f"{root}{os.sep}{relative}" if relative else None, origin, *rest)
        for name, (kind, relative, *rest) in names.items()
    }


def _lm_eval_names(root: Path) -> dict[str, list[Any]]:
    version = importlib.metadata.version("lm_eval")
    # In a source checkout files change under one version number, so only an installed copy is cached.
    if not {"site-packages", "dist-packages"} & set(root.parts):
        return _scanned(root, {})
    cached = cache_dir() / f"lm_eval-tasks-{version}.json"
    source = [_FORMAT, version]  # names and relative paths, which are those of every environment with this version
    with contextlib.suppress(DataError, KeyError, TypeError):
        content = read_json(cached, DataError)
        if content["source"] == source:
            return dict(content["names"])
    names = _scanned(root, {})
    write_cache(cached, {"source": source, "names": names})
    return names


@cache
def _lm_eval_entries(root: Path) -> dict[str, TaskEntry]:
    return _entries(root, LM_EVAL, _lm_eval_names(root))


class TaskIndex:
    """All names of this run. ``replaced``: names that stand for another file than before, with a sentence on each.
    Raises UsageError or DataError: a folder of ``include_path`` without a task file that can be read."""

    def __init__(self, include_path: Sequence[str | Path] = ()) -> None:
        self.replaced: dict[str, str] = {}
        self._unreadable: dict[str, DataError] = {}
        self._extra: dict[str, TaskEntry] = {}
        for entry in registry().entries("task_folder"):
            self._add(Path(entry.target), entry.name, entry.about.get("without", ()))
        for folder in include_path:
            root = included_folder(folder, "lm-eval task files")
            if not self._add(root, str(folder)):
                self._raise_first()
                raise UsageError(
                    f"--include-path {folder}: no task file in this folder (*.yaml with a task or group key); give the"
                    " folder with the tasks, or leave it out"
                )

    def _add(self, root: Path, origin: str, without: Collection[str] = ()) -> int:
        """Add the tasks of a folder; returns their number."""
        entries = _entries(root, origin, _scanned(root, self._unreadable, without))
        for name, entry in entries.items():
            if name in self._extra:
                self.replaced[name] = f"{entry.kind} {name!r} of {origin} replaces that of {self._extra[name].origin}"
        self._extra |= entries
        return len(entries)

    @cached_property
    def entries(self) -> dict[str, TaskEntry]:
        """Every name, those of lm-eval included."""
        names = _lm_eval_entries(lm_eval_folder())
        for name, entry in self._extra.items():
            if name in names:
                self.replaced[name] = f"{entry.kind} {name!r} of {entry.origin} replaces lm-eval's"
        return {**names, **self._extra}

    def match(self, patterns: Iterable[str]) -> list[str]:
        """Names for the user's patterns, without repeats, in the order given: names, globs such as ``mmlu_*``, paths of
        task files, or one folder of task files; raises UnknownNameError or UsageError."""
        names: list[str] = []
        for pattern in patterns:
            if pattern in self.entries:
                names.append(pattern)
            elif self.is_path(pattern):
                names += self._from_path(pattern)
            else:
                matches = fnmatch.filter(self.entries, pattern) if set("*?[") & set(pattern) else []
                if not matches:
                    self._raise_first()  # it may define the name
                    raise unknown("task", pattern, self.entries)
                names += sorted(matches)
        return list(dict.fromkeys(names))

    def _raise_first(self) -> None:
        """Raise the DataError of the first file of the user's folders that cannot be read, if there is one."""
        for error in self._unreadable.values():
            raise error

    def is_path(self, word: str) -> bool:
        """Is the word a task file or a folder of them, not a name?"""
        return word not in self.entries and (word.endswith(".yaml") or os.sep in word or existing(word) is not None)

    def _from_path(self, word: str) -> list[str]:
        """Adds a task file, or all of a folder, to the index."""
        path = existing(word)
        if path is None:
            raise UsageError(f"--tasks {word}: no such task file")
        file = path.resolve()
        folder = file if path.is_dir() else file.parent
        unreadable: dict[str, DataError] = {}
        entries = _entries(folder, str(path), _scanned(folder, unreadable))
        if not path.is_dir():
            entries = {name: entry for name, entry in entries.items() if entry.path == file}
            unreadable = {name: error for name, error in unreadable.items() if name == str(file)}
        if not entries:
            for error in unreadable.values():
                raise error
            where = "no task file (*.yaml with a task or group key) in this folder"
            raise UsageError(f"--tasks {path}: {where if path.is_dir() else 'the file has no task or group key'}")
        self.entries.update(entries)
        return [name for name, entry in entries.items() if entry.kind != "tag"]

    def refuse_rolling(self, leaves: Iterable[TaskEntry]) -> None:
        """Raise UsageError for a task of log-likelihoods of whole texts, before its data are fetched."""
        for entry in leaves:
            if entry.output_type == ROLLING:
                raise undefined(entry.name, ROLLING)

    def likelihood_tasks(self, leaves: Iterable[TaskEntry]) -> Iterator[str]:
        """The names of the tasks whose files say that they need log-likelihoods."""
        return (entry.name for entry in leaves if entry.output_type in _LIKELIHOODS)

    def reached(self, names: Iterable[str]) -> dict[str, TaskEntry]:
        """The entries of ``names``, and of everything in their groups and tags."""
        found: dict[str, TaskEntry] = {}
        stack = list(names)[::-1]
        while stack:
            name = stack.pop()
            if name not in found and name in self.entries:
                found[name] = self.entries[name]
                stack += found[name].members[::-1]
        return found

    def leaves(self, names: Iterable[str]) -> list[TaskEntry]:
        """The tasks behind ``names``, groups and tags expanded, each once."""
        return [entry for entry in self.reached(names).values() if entry.kind in ("task", "python")]


def _names_in(task: Any) -> Iterator[str]:
    """Names in a group's ``task`` value: plain names, and dictionaries with ``task`` or ``group`` (a list of tasks
    inside a dictionary is a group written inline)."""
    for item in [task] if isinstance(task, str) else task or ():
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            if isinstance(item.get("group"), str):
                yield item["group"]
            yield from _names_in(item.get("task"))
