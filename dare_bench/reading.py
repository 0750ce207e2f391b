"""Reading files that somebody else may have written: checkpoints, runs, settings, manifests, results.

Only regular files are opened (no FIFO or device, which could block), up to a maximum size, and nested no deeper than
:data:`MAX_DEPTH`. Each reader takes the error class to raise, so that a run's file is a
:class:`~dare_bench.errors.RunError` and a checkpoint's a :class:`~dare_bench.errors.CheckpointError`.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import stat
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import yaml

from dare_bench.errors import DareError

MAX_BYTES = 64 << 20
"""Maximum size of JSON and text files."""
MAX_LINE = 16 << 20
"""Maximum length of a line."""
MAX_DEPTH = 64
"""Maximum nesting of lists and mappings, in JSON and YAML."""
MAX_NODES = 1_000_000
"""Maximum number of values in a YAML file, with aliases expanded."""
MAX_YAML = 256 << 10
"""Maximum size of a YAML file; PyYAML takes up to 30 seconds for a megabyte."""
MAX_SOURCE = 1 << 20
"""Maximum size of a file of source code."""


def existing(name: str | Path) -> Path | None:
    """The path of a user's name for a file or folder; None if nothing exists there, or if it is not a valid path."""
    try:
        path = Path(name).expanduser()
    except RuntimeError:  # "~nobody/x"
        return None
    return path if os.path.exists(path) else None  # noqa: PTH110 - Path.exists raises for names that are too long


@contextmanager
def open_regular(path: str | Path, error: type[DareError]) -> Iterator[BufferedReader]:
    """The regular file at ``path``, open for reading bytes; read errors inside the block become ``error`` too.

    Raises:
        error: there is no such file, it is a folder, FIFO, socket or device, or it cannot be read.
    """
    try:
        # Without O_NONBLOCK opening a FIFO waits for a writer that may never come.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as cause:  # ValueError: a NUL character in the name
        raise error(f"cannot read {str(path)!r}: {getattr(cause, 'strerror', None) or cause}") from cause
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        raise error(f"cannot read {path}: it is {_kind(mode)}, not a regular file")
    with os.fdopen(handle, "rb") as file:
        try:
            yield file
        except OSError as cause:
            raise error(f"cannot read {path}: {cause.strerror or cause}") from cause


def check_folder(folder: Path, error: type[DareError], *, texts: frozenset[str]) -> None:
    """Check a folder whose files a library opens itself. Each entry must be a regular file (or a link to one) or a
    folder. A file with a suffix in ``texts``, which is read as a whole, may have at most :data:`MAX_BYTES`.

    Raises:
        error: naming the first entry that does not satisfy this.
    """
    try:
        entries = [(entry, entry.stat()) for entry in sorted(folder.iterdir()) if entry.exists()]
    except OSError as cause:
        raise error(f"cannot read {folder}: {cause.strerror or cause}") from cause
    for entry, state in entries:
        if not (stat.S_ISREG(state.st_mode) or stat.S_ISDIR(state.st_mode)):
            problem = f"it is {_kind(state.st_mode)}; only regular files and folders are allowed"
        elif stat.S_ISREG(state.st_mode) and entry.suffix in texts and state.st_size > MAX_BYTES:
            problem = f"it has {state.st_size:,} bytes, more than the limit of {MAX_BYTES:,} for a text file"
        else:
            continue
        raise error(f"cannot read {entry}: {problem}; remove it, or fetch it again")


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_bytes(path: str | Path, error: type[DareError], *, limit: int = MAX_BYTES) -> bytes:
    """The contents of a file of at most ``limit`` bytes; raises ``error``."""
    with open_regular(path, error) as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise error(f"cannot read {path}: it is larger than the limit of {limit:,} bytes")
    return raw


def read_text(path: str | Path, error: type[DareError], *, limit: int = MAX_BYTES) -> str:
    """The contents of a UTF-8 text file; raises ``error``."""
    try:
        return read_bytes(path, error, limit=limit).decode("utf-8")
    except UnicodeDecodeError as cause:
        raise error(f"cannot read {path}: it is not UTF-8 text (byte {cause.start})") from cause


def read_source(path: str | Path, error: type[DareError], *, limit: int = MAX_SOURCE) -> str:
    """The contents of a file of source code; invalid UTF-8 becomes U+FFFD; raises ``error``."""
    text = read_bytes(path, error, limit=limit).decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_json(path: str | Path, error: type[DareError], *, limit: int = MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file; raises ``error``."""
    return json_object(read_bytes(path, error, limit=limit), str(path), error)


def json_object(raw: bytes, where: str, error: type[DareError], *, unique: bool = False) -> dict[str, Any]:
    """The JSON object in ``raw``, which messages call ``where``; raises ``error``."""
    try:
        value = parse_json(raw, unique=unique)
    except ValueError as cause:
        raise error(f"{where} is damaged: {cause}") from cause
    if not isinstance(value, dict):
        raise error(f"{where} is damaged: expected a JSON object, found {type(value).__name__}")
    return value


def parse_json(raw: bytes | str, *, unique: bool = False) -> Any:
    """A JSON value.

    An integer of more than 20 digits becomes a float (possibly infinite), so that arithmetic on it is not slow.

    Args:
        unique: refuse an object with duplicate keys, of which JSON would silently keep the last.

    Raises:
        ValueError: not UTF-8, not JSON, nested deeper than :data:`MAX_DEPTH`, or not ``unique``.
    """
    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text (byte {error.start})") from error
    try:
        value = json.loads(text, parse_int=_integer, object_pairs_hook=unique_object if unique else None)
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:
        raise ValueError(f"not JSON ({error})") from error
    # Most values have fewer brackets than the maximum depth and need no further check.
    if text.count("[") + text.count("{") > MAX_DEPTH:
        check_nesting(value)
    return value


def unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object from its pairs, for ``object_pairs_hook``; raises ValueError for a duplicate key."""
    value = dict(pairs)
    if len(value) < len(pairs):
        (duplicate, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {duplicate!r}; keep one")
    return value


def _integer(text: str) -> int | float:
    return int(text) if len(text) <= 20 else float(text)


def check_nesting(value: Any, *, most: int | None = None) -> None:
    """Raise ValueError if ``value`` is nested deeper than :data:`MAX_DEPTH`, or contains more than ``most`` values."""
    layer, count = [value], 1
    for _ in range(MAX_DEPTH + 1):
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, (dict, list, tuple, set)):
                inner.extend(item.values() if isinstance(item, dict) else item)
            if most is not None and count + len(inner) > most:
                raise ValueError(f"it has more than {most:,} values")
        count += len(inner)
        if not (layer := inner):
            return
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"nested deeper than {MAX_DEPTH} levels")


_DIGITS = 64


class LimitedLoader(yaml.SafeLoader):
    """SafeLoader that refuses a value nested deeper than :data:`MAX_DEPTH`, with ValueError."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _too_deep()
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


class _UniqueLoader(LimitedLoader):
    """Refuses also duplicate keys (YAML would silently keep the last) and keys that are not scalars."""

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > _DIGITS:  # Python refuses to print a number of thousands of digits
            raise ValueError(f"line {node.start_mark.line + 1}: a number of more than {_DIGITS} digits")
        return int(super().construct_yaml_int(node))

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"line {line}: a key is a {key_node.id}; it must be a word or number")
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise ValueError(f"line {line}: duplicate key {key!r}; keep one")
            seen.add(key)
        return super().construct_mapping(node, deep)


# PyYAML looks up constructors in a table by tag, not by method name.
_UniqueLoader.add_constructor("tag:yaml.org,2002:int", _UniqueLoader.construct_yaml_int)


def parse_yaml(text: str) -> Any:
    """A YAML value of plain types.

    Raises:
        ValueError: not YAML, nested deeper than :data:`MAX_DEPTH`, more than :data:`MAX_NODES` values with aliases
            expanded, a duplicate key or one that is not a scalar; the message names the line.
    """
    try:
        value = yaml.load(text, Loader=_UniqueLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}not valid YAML ({getattr(error, 'problem', None) or error})") from error
    except RecursionError:
        raise _too_deep() from None
    except (AttributeError, LookupError, TypeError) as error:  # from PyYAML, for a value that does not fit its tag
        raise ValueError(f"not valid YAML (a value is not what its tag says: {error})") from error
    check_nesting(value, most=MAX_NODES)
    return value


def read_yaml(path: str | Path, error: type[DareError]) -> Any:
    """The value in a YAML file; raises ``error``."""
    text = read_text(path, error, limit=MAX_YAML)
    try:
        return parse_yaml(text)
    except ValueError as cause:
        raise error(f"{path}: {cause}") from cause


_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def check_json_depth(path: str | Path, error: type[DareError]) -> None:
    """Refuse a file of JSON values (gzip-compressed or not) that are nested too deep, before another library reads it:
    pyarrow crashes on thousands of levels. Matching brackets outside of strings are removed from the inside out.

    Raises:
        error: nested deeper than :data:`MAX_DEPTH`, a string longer than :data:`MAX_LINE`, or unreadable.
    """
    tail, brackets = b"", b""
    with open_regular(path, error) as file, gzip.open(file) if str(path).endswith(".gz") else file as data:
        try:
            while piece := data.read(1 << 22):
                rest = _STRING.sub(b"", tail + piece)
                quote = rest.find(b'"')  # a string that goes on in the next piece
                rest, tail = (rest, b"") if quote < 0 else (rest[:quote], rest[quote:])
                brackets += rest.translate(None, _NO_BRACKETS)
                for _ in range(MAX_DEPTH):
                    brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")
                if len(brackets) > MAX_DEPTH or b"[]" in brackets or b"{}" in brackets:
                    raise error(f"{path}: nested deeper than {MAX_DEPTH} levels, or not JSON")
                if len(tail) > MAX_LINE:
                    raise error(f"{path}: a string is longer than the limit of {MAX_LINE:,} bytes")
        except (OSError, EOFError, zlib.error) as cause:
            raise error(f"{path}: cannot be read ({cause})") from cause


def read_lines(
    path: str | Path, error: type[DareError], start: int = 0, *, cut: bool = False
) -> Iterator[tuple[int, int, bytes]]:
    """(number from 1, offset, bytes) of each line that is not blank, from the offset ``start`` on.

    Args:
        cut: of a line that is longer than :data:`MAX_LINE`, give the beginning.

    Raises:
        error: the file cannot be read, or a line is longer than :data:`MAX_LINE` (unless ``cut``).
    """
    with open_regular(path, error) as file:
        file.seek(start)
        offset, number = start, 0
        while raw := file.readline(MAX_LINE + 1):
            number += 1
            if len(raw) > MAX_LINE and not cut:
                raise error(f"{path}, line {number}: it is longer than the limit of {MAX_LINE:,} bytes")
            if not raw.isspace():
                yield number, offset, raw
            while len(raw) > MAX_LINE and not raw.endswith(b"\n"):
                offset += len(raw)
                raw = file.readline(MAX_LINE + 1)
            offset += len(raw)
