"""The names that an lm-eval task folder defines, read as text.

lm-eval's index parses every YAML file: on two busy cores 29 seconds for its 14,683 names, and 4 to import it, which
folders of the user's tasks would pay at each start. This takes 3 (0.2 from the cache). Names and data sets need only
eight top-level keys, so it finds those keys by pattern and ignores the rest. The rules are those of
``lm_eval.tasks._index``. Files are read in order of their paths, and the first of two equal names wins inside one
folder. Keys are inherited through ``include``. A file that defines neither a task nor a group is a template.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dare_bench.errors import DareError, DataError
from dare_bench.reading import MAX_DEPTH, MAX_NODES, MAX_YAML, LimitedLoader, check_nesting, read_source

# A key at column 0 with its value: the rest of the line and the lines that belong to it.
_KEY = re.compile(
    r"^(?P<quote>[\"']?)(?P<key>task|group|tag|include|class|output_type|dataset_path|dataset_name)(?P=quote)"
    r"[ \t]*:(?:[ \t]+|$)"
    r"(?P<value>.*(?:\n(?:[ \t]+\S.*|-(?:[ \t].*)?|[ \t]*|\#.*)$)*)",
    re.MULTILINE,
)
_PLAIN = re.compile(r"\s*(?P<quote>[\"']?)(?P<text>[A-Za-z_./][\w./:+@-]*)(?P=quote)\s*(?:#.*)?\s*\Z")
_ITEM = re.compile(r"\s*-\s+(?P<quote>[\"']?)(?P<text>[A-Za-z_./][\w./:+@-]*)(?P=quote)\s*\Z")
_WORDS = {"null", "true", "false", "yes", "no", "on", "off"}
_SKIP = {"__pycache__", ".ipynb_checkpoints"}


class _Loader(LimitedLoader):
    """Reads ``!function name`` (and any other tag) as None: only names matter here."""


_Loader.add_multi_constructor("!", lambda loader, suffix, node: None)


def yaml_files(root: Path) -> list[str]:
    """Paths of the ``.yaml`` files below ``root``, relative to it, in lm-eval's order."""
    paths = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in _SKIP]
        paths += [os.path.relpath(f"{folder}/{name}", root) for name in files if name.endswith(".yaml")]
    return sorted(paths)


def value_of(raw: str) -> Any:
    """The YAML value of a scanned key: a string, a list, or any other YAML value; raises DataError."""
    plain = _PLAIN.match(raw)
    if plain and plain["text"].lower() not in _WORDS:
        return plain["text"]
    lines = [line for line in raw.split("\n") if line.strip()]
    items = [_ITEM.match(line) for line in lines]
    if items and all(items):
        return [item["text"] for item in items if item]
    # The first line lost its indentation with the key; a list or mapping that begins there is one line anyway.
    try:
        value = yaml.load("value: " + raw, Loader=_Loader)["value"]
        check_nesting(value, most=MAX_NODES)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{raw[:60]!r} is not a YAML value ({' '.join(str(error).split())})") from error
    return value


def names_of(raw: str) -> list[str]:
    """The names in the value of a scanned key, a list or one or none; raises DataError for anything else."""
    value = value_of(raw)
    names = [] if value is None else value if isinstance(value, list) else [value]
    if any(isinstance(name, (list, dict)) for name in names):
        raise DataError(f"{raw[:60]!r} is {type(value).__name__}, expected a name or a list of names")
    return [str(name) for name in names]


def beside(path: str, name: str) -> str:
    """The path of ``name`` as written in the file ``path``."""
    return name if name.startswith("/") else f"{path.rpartition('/')[0]}/{name}"


class Scanner:
    """Reads keys of task files, following includes; each file is read once."""

    def __init__(self) -> None:
        self._seen: dict[str, dict[str, str]] = {}

    def keys(self, path: str, above: tuple[str, ...] = ()) -> dict[str, str]:
        """Raw values of the eight keys in ``path``, with those of its includes (which its keys override); raises
        DataError."""
        path = os.path.normpath(path)
        if path in self._seen:
            return self._seen[path]
        if path in above:
            raise DataError(f"{path} includes itself")
        if len(above) > MAX_DEPTH:
            raise DataError(f"{path} is included through more than {MAX_DEPTH} files")
        text = read_source(path, DataError, limit=MAX_YAML)
        in_file = {match["key"]: match["value"] for match in _KEY.finditer(text)}
        merged: dict[str, str] = {}
        include = in_file.pop("include", None)
        for name in names_of(include) if include is not None else ():
            merged |= self.keys(beside(path, name), (*above, path))
        self._seen[path] = merged | in_file
        return self._seen[path]


def scan(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """(name, kind, relative path, tags) of every file below ``root`` that defines a task or group, in lm-eval's order;
    files that cannot be read are left out, as lm-eval does."""
    scanner = Scanner()
    for relative in yaml_files(root):
        try:
            keys = scanner.keys(f"{root}/{relative}")
            # lm-eval's order of checks: a class first, then a group, then a task.
            kind = "python" if "class" in keys else "group" if "group" in keys else "task"
            name = value_of(keys["group" if kind == "group" else "task"])
            tags = names_of(keys["tag"]) if "tag" in keys and kind != "group" else []
        except (DareError, KeyError):
            continue
        if isinstance(name, str):
            yield name, kind, relative, tags
