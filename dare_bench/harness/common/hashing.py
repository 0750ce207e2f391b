"""Hashes of what makes two evaluations of a task the same task: its definition and its documents."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def documents_hash(rows: Iterable[tuple[int, Any, Any]]) -> str:
    """Hash of (document, prompt, target) in order of the documents."""
    return short_hash(json.dumps(sorted((doc, str(prompt), str(target)) for doc, prompt, target in rows)))


def short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_hash(path: str) -> str:
    return short_hash(Path(path).read_text(encoding="utf-8", errors="replace"))


def described(value: Any, mapping: Callable[[Mapping[Any, Any]], Any], other: Callable[[Any], Any]) -> Any:
    """A JSON value that changes if and only if the behavior of ``value`` does. ``mapping`` describes a mapping,
    ``other`` what is neither a scalar nor a collection (a function or class); None means "by its ``repr``"."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return mapping(value)
    if isinstance(value, (list, tuple)):
        return [described(item, mapping, other) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    description = other(value)
    return _ADDRESS.sub("", repr(value)) if description is None else description
