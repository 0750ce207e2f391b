"""Makes values from the messages of the other process, which is not trusted (format: values.py)."""

from __future__ import annotations

from importlib import import_module
from itertools import islice

from dare_bench.sandbox.values import (
    LIBRARY,
    MAPPINGS,
    NUMBERS,
    PARTS,
    SEQUENCES,
    SHELLS,
    Unreadable,
    base_of,
    is_library,
    library_name,
    plain_type,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PENDING = object()


class Reader:
    """Makes values from nodes. ``resolve`` finds exported objects and stand-ins. ``values``: of the nodes so far."""

    def __init__(self, resolve: Callable[..., Any], values: list[Any]) -> None:
        self.resolve, self.values = resolve, values

    def add(self, nodes: list[Any]) -> None:
        start = len(self.values)
        for name, *fields in nodes:
            length = {"maxlen": fields[0]} if name == "collections.deque" else {}
            self.values.append(plain_type(name)(**length) if name in SHELLS else _PENDING)
        for n, node in enumerate(nodes, start):
            if self.values[n] is _PENDING:
                self.values[n] = self._build(*node)
        for n, node in enumerate(nodes, start):
            if node[0] in SHELLS:
                self.fill(n, node)

    def item(self, item: Any) -> Any:
        if type(item) is not list:
            return item
        value = self.values[item[0]]
        if value is _PENDING:
            raise Unreadable("a node refers to a later one")
        return value

    def items(self, items: list[Any], rows: str = "") -> list[Any]:
        if rows == "packed":
            table, places, lengths = items
            flat = map(table.__getitem__, bytes.fromhex(places))
            if lengths[0] and len(set(lengths)) == 1:
                return list(zip(*[flat] * lengths[0], strict=False))
            return [tuple(islice(flat, length)) for length in lengths]
        if rows:
            return list(map(tuple, items))
        return [self.item(item) for item in items] if list in map(type, items) else items

    def fill(self, n: int, node: list[Any]) -> None:
        """Set the content of the n-th value from its node, in place."""
        value, (name, *fields) = self.values[n], node
        if base_of(value)[0] != name:
            raise Unreadable(f"a {type(value).__name__} does not become a {name}")
        if name == "collections.defaultdict":
            value.default_factory = self.item(fields.pop(0))
        if name in MAPPINGS:
            value.clear()
            for key, item in zip(*map(self.items, fields), strict=True):
                value[key] = item
        elif name in ("list", "bytearray"):
            value[:] = bytes.fromhex(fields[0]) if name == "bytearray" else self.items(*fields)
        elif name == "numpy.ndarray":
            value[...] = self._build(*node)
        else:
            value.clear()
            getattr(value, "update" if name == "set" else "extend")(self.items(*fields[name != "set" :]))

    def _build(self, name: str, *fields: Any) -> Any:
        if name in ("tuple", "frozenset"):
            return {"tuple": tuple, "frozenset": frozenset}[name](self.items(*fields))
        if name in SEQUENCES:
            items: Any = self.items(*fields)
            dicts = {"dict_items": dict, "dict_values": lambda values: dict(enumerate(values))}
            view: Any = dicts.get(name, dict.fromkeys)
            return getattr(view(items), name.removeprefix("dict_"))()
        if name in _MAKERS:
            return _MAKERS[name](self, *fields)
        if name in PARTS:
            return plain_type(name)(*self.items(*fields))
        raise Unreadable(f"{name!r} is not a type of values")

    def namedtuple(self, name: str, fields: list[str], *items: Any) -> Any:
        from collections import namedtuple

        return namedtuple(name, fields)(*self.items(*items))

    def array(self, dtype: str, shape: list[int], data: Any) -> Any:
        import numpy as np

        if dtype == "O":
            array: Any = np.empty(len(data), dtype=object)
            array[:] = self.items(data)
            return array.reshape(shape)
        if np.dtype(dtype).kind not in NUMBERS:
            raise Unreadable(f"an array of {dtype}")
        return np.frombuffer(bytes.fromhex(data), np.dtype(dtype)).reshape(shape).copy()

    def error(self, name: str, arguments: list[Any], description: str) -> BaseException:
        kind = plain_type(name)
        if not issubclass(kind, BaseException):
            raise Unreadable(f"{name} is not an exception")
        try:
            error: BaseException = kind(*self.items(arguments))
        except TypeError:  # a class that takes other arguments than it keeps
            error = RuntimeError(str(description))
        error.__dict__["dare_bench_description"] = str(description)
        return error

    def module(self, name: str) -> Any:
        if not is_library(name):
            raise Unreadable(f"the module {name} is not the library's")
        return import_module(name)

    def library(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in LIBRARY:
            raise Unreadable(f"{module}.{name} is not the library's")
        function = getattr(import_module(module), name)
        if library_name(function) != (module, name):
            raise Unreadable(f"{module}.{name} is not a function")
        return function


def _match(pattern: Any, flags: int, text: Any, start: int, end: int) -> Any:
    """A match of the reader's search."""
    import re

    compiled = re.compile(pattern, flags)
    match = compiled.match(text, start)
    if match is None or match.end() != end:
        match = compiled.fullmatch(text, start, end)
    if match is None:
        raise Unreadable(f"no match of {pattern!r} at {start}")
    return match


# Values that are not simply a type and its arguments.
_MAKERS: dict[str, Callable[..., Any]] = {
    "object": lambda reader, side, number: reader.resolve(side, number),
    "bytes": lambda _, digits: bytes.fromhex(digits),
    "ellipsis": lambda _: ...,
    "namedtuple": Reader.namedtuple,
    "numpy.ndarray": Reader.array,
    "numpy.generic": lambda reader, *fields: reader.array(*fields)[()],
    "re.Match": lambda reader, *fields: _match(*reader.items(*fields)),
    "error": Reader.error,
    "type": lambda _, name: plain_type(name),
    "module": Reader.module,
    "library": Reader.library,
}
