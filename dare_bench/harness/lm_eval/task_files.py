"""lm-eval's task files, read as lm-eval reads them, but without importing what they name.

lm-eval's own index takes 29 s on two busy cores for its 14,000 files; this takes 4, and its result is cached
(:mod:`~dare_bench.harness.lm_eval.task_index`). Files may come from other people, so they are read with limits.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from dare_bench.errors import DataError
from dare_bench.reading import MAX_DEPTH, MAX_NODES, MAX_YAML, check_nesting, read_source

_SKIP = {"__pycache__", ".ipynb_checkpoints"}


class Function(str):
    """The value of ``!function module.name``: the path of the module's file, below the folder of the task file."""

    __slots__ = ()


class _Loader(Composer, yaml.CSafeLoader):
    """libyaml's parser, which is ten times as fast as PyYAML's; its own composer would crash on deep nesting."""

    def __init__(self, text: str, folder: Path) -> None:
        yaml.CSafeLoader.__init__(self, text)
        Composer.__init__(self)
        self.folder, self.depth = folder, 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _function(loader: _Loader, node: yaml.ScalarNode) -> Function:
    module = str(loader.construct_scalar(node)).rpartition(".")[0]
    return Function(f"{loader.folder}/{module.replace('.', '/')}.py")


_Loader.add_constructor("!function", _function)
_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


class TaskFiles:
    """Reads task files; each is read once."""

    def __init__(self) -> None:
        self._read: dict[str, dict[str, Any]] = {}

    def read(self, path: str, above: tuple[str, ...] = ()) -> dict[str, Any]:
        """The keys of a file with those of its includes, which its own override; raises DataError."""
        path = os.path.normpath(path)
        if path in self._read:
            return self._read[path]
        if path in above or len(above) > MAX_DEPTH:
            raise DataError(f"{path} is included by itself, or through more than {MAX_DEPTH} files")
        in_file = _parsed(path)
        merged: dict[str, Any] = {}
        for name in names_of(in_file.pop("include", None)):
            merged |= self.read(os.path.join(os.path.dirname(path), name), (*above, path))  # noqa: PTH118, PTH120
        self._read[path] = merged | in_file
        return self._read[path]


def _parsed(path: str) -> dict[str, Any]:
    loader = _Loader(read_source(path, DataError, limit=MAX_YAML), Path(path).parent)
    try:
        value = loader.get_single_data()
        check_nesting(value, most=MAX_NODES)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{path}: cannot be read as a task file ({' '.join(str(error).split())})") from error
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise DataError(f"{path}: cannot be read as a task file (it is {type(value).__name__})")
    return value


def names_of(value: Any) -> list[str]:
    """The names in the value of a key, a list or one or none; raises DataError for anything else."""
    names = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(name, (list, dict)) for name in names):
        raise DataError(f"{value!r:.60} is {type(value).__name__}, expected a name or a list of names")
    return [str(name) for name in names]


def scan(
    root: Path, unreadable: dict[str, DataError], without: Collection[str] = ()
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(name, kind, path relative to ``root``, keys) of every file below it that defines a task or group, in lm-eval's
    order. Files that cannot be read are left out, as lm-eval does, and ``unreadable`` gets their errors by path; so are
    those in folders with a name in ``without``."""
    paths = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIP and name not in without]
        paths += [os.path.relpath(f"{folder}/{name}", root) for name in files if name.endswith(".yaml")]
    task_files = TaskFiles()
    for relative in sorted(paths):
        try:
            keys = task_files.read(f"{root}/{relative}")
            # lm-eval's order of checks: a class first, then a group, then a task.
            kind = "python" if "class" in keys else "group" if "group" in keys else "task"
            name = keys.get("group" if kind == "group" else "task")
            names_of(keys.get("tag"))
        except DataError as error:
            unreadable[f"{root}/{relative}"] = error
            continue
        if isinstance(name, str):
            yield name, kind, relative, keys
