"""Grids: a list where one value belongs is an axis; points are the product of all axes, the first varying slowest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product
from typing import Any

from dare_bench.errors import UsageError

Named = Mapping[str, frozenset[str]]
MOST = 2000
"""Most points of a grid, most nodes of a sweep."""


def bounded(count: int, where: str, what: str = "combinations") -> int:
    """``count`` if a sweep can have so many; raises UsageError."""
    if count > MOST:
        raise UsageError(f"{where}: {count:,} {what}; a sweep may have {MOST:,}: cut its lists, or make several sweeps")
    return count


def expand(
    mapping: Mapping[str, Any], where: str, lists: frozenset[str] = frozenset(), nested: Named | None = None
) -> list[dict[str, Any]]:
    """The points of ``mapping``, in the order of its keys.

    Args:
        where: its place in the file, for messages.
        lists: keys whose value is a list by nature; an axis of such values is a list of lists.
        nested: keys whose value is a mapping that may hold axes itself, with that mapping's own ``lists``.

    Raises:
        UsageError: an empty axis, a value that stands on an axis twice, or more points than a sweep may have.
    """
    inner = nested or {}
    axes = []
    for name, value in mapping.items():
        place = f"{where}.{name}"
        if name in inner and isinstance(value, Mapping):
            axes.append(expand(value, place, inner[name]))
            continue
        whole = name in lists and not (isinstance(value, list) and value and all(isinstance(v, list) for v in value))
        axis = value if isinstance(value, list) and not whole else [value]
        if not axis:
            raise UsageError(f"{place}: an empty list has no value; give one, or leave {name} out")
        bounded(len(axis), place)
        twice = [item for at, item in enumerate(axis) if _in(item, axis[:at])]
        if twice:
            raise UsageError(f"{place}: {twice[0]!r} stands there twice; keep one")
        axes.append(axis)
    bounded(math.prod(map(len, axes)), where)
    return [dict(zip(mapping, point, strict=True)) for point in product(*axes)]


def _in(item: Any, seen: list[Any]) -> bool:
    """Equal and of one type: 1 and True are two values."""
    return any(item == other and type(item) is type(other) for other in seen)
