"""Writes values for the other process (format: values.py)."""

from __future__ import annotations

from itertools import chain

from dare_bench.sandbox.values import (
    ATOMS,
    CHANGEABLE,
    MAPPINGS,
    NUMBERS,
    PARTS,
    SEQUENCES,
    SHELLS,
    base_of,
    describe,
    dumps,
    is_library,
    is_plain_type,
    library_name,
    name_of,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_MANY_ROWS = 1000


class Writer:
    """Turns values into items and nodes. ``known``: objects that the reader already has as the first nodes;
    ``export`` makes the node of an object that stays here."""

    def __init__(self, known: Iterable[Any], export: Callable[[Any], list[Any]]) -> None:
        self.values, self._export = list(known), export
        self.nodes: list[Any] = []
        self._start = len(self.values)
        self._place = {id(value): n for n, value in enumerate(self.values)}

    def item(self, value: Any) -> Any:
        kind = type(value)
        if kind in (int, bool, type(None), float, str):
            return value
        if id(value) in self._place:
            return [self._place[id(value)]]
        name, base = base_of(value)
        if name in ("int", "float", "str"):
            return self.item({"int": int.__int__, "float": float.__float__, "str": str.__str__}[name](value))
        if name not in SHELLS:
            return [self._add(value, self.content(value, name, base))]
        place = self._add(value, [])
        self.nodes[place - self._start] = self.content(value, name, base)
        return [place]

    def _add(self, value: Any, node: list[Any]) -> int:
        self.nodes.append(node)
        self.values.append(value)  # kept alive: it is identified by its id
        self._place[id(value)] = len(self.values) - 1
        return len(self.values) - 1

    def items(self, values: Iterable[Any]) -> list[Any]:
        """One or two fields: atoms stay as they are, and so do tuples of atoms, which are marked."""
        items = list(values)
        if ATOMS.issuperset(map(type, items)):
            return [items]
        if {tuple}.issuperset(map(type, items)):
            if packed := _packed(items):
                return [packed, "packed"]
            if ATOMS.issuperset(map(type, chain.from_iterable(items))):
                return [items, "rows"]
        return [[self.item(value) for value in items]]

    def content(self, value: Any, name: str, base: Any) -> list[Any]:
        """The node of a value of (a class derived from) the type ``base``."""
        if name in SEQUENCES:
            if name == "tuple" and type(value) is not tuple and hasattr(type(value), "_fields"):
                return ["namedtuple", type(value).__name__, list(value._fields), *self.items(tuple.__iter__(value))]
            more = [value.maxlen] if name == "collections.deque" else []
            return [name, *more, *self.items(base.__iter__(value))]
        if name in MAPPINGS:
            more = [self.item(value.default_factory)] if name == "collections.defaultdict" else []
            keys, values = ([self.item(v) for v in part] for part in (base.keys(value), base.values(value)))
            return [name, *more, keys, values]
        if name in PARTS:
            return [name, *self.items(PARTS[name](value))]
        if name in ("bytes", "bytearray"):
            return [name, bytes(memoryview(value)).hex()]
        if name == "ellipsis":
            return [name]
        if name == "module" and is_library(value.__name__):
            return [name, value.__name__]
        if name in ("numpy.ndarray", "numpy.generic"):
            return self._array(name, value)
        if name == "BaseException":
            known = next(base for base in type(value).__mro__ if base.__module__ == "builtins")
            return ["error", known.__name__, [self.item(v) for v in value.args], describe(value)]
        if name == "type" and is_plain_type(value):
            return [name, name_of(value)]
        if named := library_name(value):
            return ["library", *named]
        return self._export(value)

    def _array(self, name: str, value: Any) -> list[Any]:
        if value.dtype.kind in NUMBERS:
            return [name, value.dtype.str, list(value.shape), value.tobytes().hex()]
        if value.dtype.kind == "O" and name == "numpy.ndarray":
            return [name, "O", list(value.shape), [self.item(v) for v in value.ravel().tolist()]]
        return self._export(value)

    def changes(self, old: list[list[Any]]) -> list[Any]:
        """[n, node] of each known object whose content differs from its node in ``old``."""
        changes = []
        for n, node in enumerate(old):
            if node[0] in CHANGEABLE:
                now = self.content(self.values[n], *base_of(self.values[n]))
                if dumps(now) != dumps(node):
                    changes.append([n, now])
        return changes


class _Places(dict):  # type: ignore[type-arg]  # there is no Any at run time
    """Numbers names in the order of their first use."""

    def __missing__(self, name: int) -> int:
        self[name] = place = len(self)
        return place


def _packed(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Products and combinations repeat the same few objects: a table of these, the index of each item in it, and the
    lengths of the rows. Empty if the rows are few, the objects are many, or one is not an atom."""
    if len(rows) < _MANY_ROWS:
        return []
    places = _Places()
    try:
        content = bytes(map(places.__getitem__, map(id, chain.from_iterable(rows))))
    except ValueError:  # more places than a byte has
        return []
    table: dict[int, Any] = {}
    for row in rows:
        if len(table) == len(places):
            break
        table.update(zip(map(id, row), row, strict=True))
    objects = [table[name] for name in places]
    return [objects, content.hex(), list(map(len, rows))] if ATOMS.issuperset(map(type, objects)) else []
