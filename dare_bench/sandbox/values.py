"""Values as text: how what one process holds reaches another one that does not trust it.

A message is JSON: items, and the nodes that they refer to. An item is an atom (None, bool, int, float, str) or ``[n]``,
the n-th node; a node is the name of a type and what an object of it holds, so cycles and shared objects survive. The
reader makes every object itself, of the types listed here and no others: nothing that was read has methods or
comparisons of the writer's. An object of a class derived from one of these is read as that base, any other one is
exported: it stays where it is, and the reader gets a stand-in (peer.py).
"""

from __future__ import annotations

import sys
from _json import encode_basestring_ascii, make_encoder, make_scanner  # json itself loads re
from importlib import import_module
from itertools import chain
from types import BuiltinFunctionType, FunctionType, SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
    from collections.abc import Callable, Iterable
    from typing import Any

ATOMS = frozenset({int, float, str, bool, type(None)})
_SEQUENCES = {"list", "tuple", "set", "frozenset", "collections.deque", "dict_keys", "dict_values", "dict_items"}
_MAPPINGS = {"dict", "collections.OrderedDict", "collections.Counter", "collections.defaultdict"}
_SHELLS = {"list", "set", "collections.deque", "bytearray", *_MAPPINGS}  # made empty, filled when all nodes are there
_CHANGEABLE = {*_SHELLS, "numpy.ndarray"}
# Objects that are made again from these arguments.
_PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "complex": lambda v: (v.real, v.imag),
    "range": lambda v: (v.start, v.stop, v.step),
    "slice": lambda v: (v.start, v.stop, v.step),
    "decimal.Decimal": lambda v: (str(v),),
    "fractions.Fraction": lambda v: (v.numerator, v.denominator),
    "datetime.date": lambda v: (v.year, v.month, v.day),
    "datetime.time": lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    "datetime.datetime": lambda v: (v.year, v.month, v.day, v.hour, v.minute, v.second, v.microsecond, v.tzinfo),
    "datetime.timedelta": lambda v: (v.days, v.seconds, v.microseconds),
    "datetime.timezone": lambda v: (v.utcoffset(None),),
    "re.Match": lambda v: (v.re.pattern, v.re.flags, v.string, *v.span()),
}
_OTHERS = {"int", "float", "str", "bytes", "ellipsis", "BaseException", "type", "module", "numpy.ndarray"}
_KINDS = {*_SEQUENCES, *_SHELLS, *_PARTS, *_OTHERS, "numpy.generic"}
_COMMON = {id(kind): kind for kind in (list, tuple, dict, set)}  # by id: a class may be unhashable
_NUMBERS = "biufcmMSU"  # numpy's types without references to objects
# Modules whose functions are the reader's own: the tests of a document may rely on what a solution imports.
LIBRARY = frozenset(
    {
        *("math", "cmath", "statistics", "fractions", "decimal", "datetime", "random", "numpy"),
        *("collections", "itertools", "functools", "operator", "heapq", "bisect", "copy", "re", "string", "typing"),
    }
)
_OURS = ("__main__", "solution", "tests", "dare_bench")
_PENDING = object()
MESSAGE_LENGTH = 2000


class Unreadable(Exception):
    """What came is no message."""


def name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def base_of(value: Any) -> tuple[str, Any]:
    """The first of the types listed here that the value is of, by name and itself; ("", None) for none."""
    if kind := _COMMON.get(id(type(value))):
        return kind.__name__, kind
    found = ((name_of(base), base) for base in type(value).__mro__)
    return next(((name, base) for name, base in found if name in _KINDS), ("", None))


class Writer:
    """Turns values into items and nodes. ``known``: objects that the reader has as the first nodes already;
    ``export`` makes the node of an object that stays here. ``large``: write integers so that any size can be read."""

    def __init__(self, known: Iterable[Any], export: Callable[[Any], list[Any]], large: bool = False) -> None:
        self.values, self._export, self._large = list(known), export, large
        self.nodes: list[Any] = []
        self._start = len(self.values)
        self._place = {id(value): n for n, value in enumerate(self.values)}

    def item(self, value: Any) -> Any:
        kind = type(value)
        if kind in (int, bool, type(None), float, str):
            return value if kind is not int or not self._large else [self._add(value, ["int", hex(value)])]
        if id(value) in self._place:
            return [self._place[id(value)]]
        name, base = base_of(value)
        if name in ("int", "float", "str"):
            return self.item({"int": int.__int__, "float": float.__float__, "str": str.__str__}[name](value))
        if name not in _SHELLS:
            return [self._add(value, self.content(value, name, base))]
        place = self._add(value, [])
        self.nodes[place - self._start] = self.content(value, name, base)
        return [place]

    def _add(self, value: Any, node: list[Any]) -> int:
        self.nodes.append(node)
        self.values.append(value)  # kept alive: its id is its name here
        self._place[id(value)] = len(self.values) - 1
        return len(self.values) - 1

    def items(self, values: Iterable[Any]) -> list[Any]:
        """One or two fields: plain atoms go as they are, and so do tuples of atoms, marked."""
        found = list(values)
        if self._large or not ATOMS.issuperset(map(type, found)):
            if not self._large and {tuple}.issuperset(map(type, found)) and _flat(found):
                return [found, "rows"]
            return [[self.item(value) for value in found]]
        return [found]

    def content(self, value: Any, name: str, base: Any) -> list[Any]:
        """The node of a value of (a class derived from) the type ``base``."""
        if name in _SEQUENCES:
            if name == "tuple" and type(value) is not tuple and hasattr(type(value), "_fields"):
                return ["namedtuple", type(value).__name__, list(value._fields), *self.items(tuple.__iter__(value))]
            more = [value.maxlen] if name == "collections.deque" else []
            return [name, *more, *self.items(base.__iter__(value))]
        if name in _MAPPINGS:
            more = [self.item(value.default_factory)] if name == "collections.defaultdict" else []
            keys, values = ([self.item(v) for v in part] for part in (base.keys(value), base.values(value)))
            return [name, *more, keys, values]
        if name in _PARTS:
            return [name, *self.items(_PARTS[name](value))]
        if name in ("bytes", "bytearray"):
            return [name, bytes(memoryview(value)).hex()]
        if name == "ellipsis":
            return [name]
        if name == "module":
            return [name, value.__name__]
        if name in ("numpy.ndarray", "numpy.generic"):
            return self._array(name, value)
        if name == "BaseException":
            return self._error(value)
        if name == "type" and _is_plain_type(value):
            return [name, name_of(value)]
        if named := _library_name(value):
            return ["library", *named]
        return self._export(value)

    def _array(self, name: str, value: Any) -> list[Any]:
        if value.dtype.kind in _NUMBERS:
            return [name, value.dtype.str, list(value.shape), value.tobytes().hex()]
        if value.dtype.kind == "O" and name == "numpy.ndarray":
            return [name, "O", list(value.shape), [self.item(v) for v in value.ravel().tolist()]]
        return self._export(value)

    def _error(self, error: BaseException) -> list[Any]:
        known = next(base for base in type(error).__mro__ if base.__module__ == "builtins")
        told = describe(error)
        arguments = error.args if ATOMS.issuperset(map(type, error.args)) else (told,)
        return ["error", known.__name__, [self.item(v) for v in arguments], told]

    def changes(self, old: list[list[Any]]) -> list[Any]:
        """[n, node] of those of the known objects that are no longer what their nodes in ``old`` say."""
        found = []
        for n, node in enumerate(old):
            if node[0] in _CHANGEABLE:
                now = self.content(self.values[n], *base_of(self.values[n]))
                if dumps(now) != dumps(node):
                    found.append([n, now])
        return found


class Reader:
    """Makes values of nodes. ``resolve`` finds exported objects and stand-ins. ``values``: of the nodes so far."""

    def __init__(self, resolve: Callable[..., Any], values: list[Any]) -> None:
        self._resolve, self.values = resolve, values

    def add(self, nodes: list[Any]) -> None:
        start = len(self.values)
        self.values += [_new(node[0], node) if node[0] in _SHELLS else _PENDING for node in nodes]
        for n, node in enumerate(nodes, start):
            if self.values[n] is _PENDING:
                self.values[n] = self._build(*node)
        for n, node in enumerate(nodes, start):
            if node[0] in _SHELLS:
                self.fill(n, node)

    def item(self, item: Any) -> Any:
        if type(item) is not list:
            return item
        value = self.values[item[0]]
        if value is _PENDING:
            raise Unreadable("a node refers to a later one")
        return value

    def items(self, items: list[Any], rows: str = "") -> list[Any]:
        if rows:
            return list(map(tuple, items))
        return [self.item(item) for item in items] if list in map(type, items) else items

    def fill(self, n: int, node: list[Any]) -> None:
        """Make the n-th value hold what the node says, in place."""
        value, (name, *fields) = self.values[n], node
        if base_of(value)[0] != name:
            raise Unreadable(f"a {type(value).__name__} does not become a {name}")
        if name == "collections.defaultdict":
            value.default_factory = self.item(fields.pop(0))
        if name in _MAPPINGS:
            value.clear()
            for key, held in zip(*map(self.items, fields), strict=True):
                value[key] = held
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
        if name in _SEQUENCES:
            held: Any = self.items(*fields)
            made = dict(held) if name == "dict_items" else dict(enumerate(held)) if name == "dict_values" else None
            return getattr(made if made is not None else dict.fromkeys(held), name.removeprefix("dict_"))()
        if name == "re.Match":
            return _match(*self.items(*fields))
        if name in _PARTS:
            return _plain_type(name)(*self.items(*fields))
        if name == "object":
            return self._resolve(*fields)
        return getattr(self, f"_{name.rpartition('.')[2]}")(*fields)

    def _int(self, digits: str) -> int:
        return int(digits, 16)

    def _bytes(self, digits: str) -> bytes:
        return bytes.fromhex(digits)

    def _ellipsis(self) -> Any:
        return ...

    def _namedtuple(self, name: str, fields: list[str], *items: Any) -> Any:
        from collections import namedtuple

        return namedtuple(name, fields)(*self.items(*items))

    def _ndarray(self, dtype: str, shape: list[int], data: Any) -> Any:
        import numpy as np

        if dtype == "O":
            made: Any = np.empty(len(data), dtype=object)
            made[:] = self.items(data)
            return made.reshape(shape)
        if np.dtype(dtype).kind not in _NUMBERS:
            raise Unreadable(f"an array of {dtype}")
        return np.frombuffer(bytes.fromhex(data), np.dtype(dtype)).reshape(shape).copy()

    def _generic(self, dtype: str, shape: list[int], data: str) -> Any:
        return self._ndarray(dtype, shape, data)[()]

    def _error(self, name: str, arguments: list[Any], told: str) -> BaseException:
        kind = _plain_type(name)
        if not issubclass(kind, BaseException):
            raise Unreadable(f"{name} is no exception")
        try:
            error: BaseException = kind(*self.items(arguments))
        except TypeError:  # a class that wants other arguments than it keeps
            error = RuntimeError(str(told))
        error.__dict__["dare_bench_told"] = str(told)
        return error

    def _type(self, name: str) -> type:
        return _plain_type(name)

    def _module(self, name: str) -> Any:
        if name.partition(".")[0] in _OURS:
            raise Unreadable(f"the module {name} is not the library's")
        return import_module(name)

    def _library(self, module: str, name: str) -> Any:
        if module.partition(".")[0] not in LIBRARY or "_" in (module[:1], name[:1]):
            raise Unreadable(f"{module}.{name} is not the library's")
        found = getattr(import_module(module), name)
        if _library_name(found) != (module, name):
            raise Unreadable(f"{module}.{name} is no function")
        return found


def _new(name: str, node: list[Any]) -> Any:
    kind = _plain_type(name)
    return kind(maxlen=node[1]) if name == "collections.deque" else kind()


def _match(pattern: Any, flags: int, text: Any, start: int, end: int) -> Any:
    """The reader searches itself: what it finds there is a match of its own."""
    import re

    compiled = re.compile(pattern, flags)
    found = compiled.match(text, start)
    if found is None or found.end() != end:
        found = compiled.fullmatch(text, start, end)
    if found is None:
        raise Unreadable(f"no match of {pattern!r} at {start}")
    return found


def _flat(rows: list[tuple[Any, ...]]) -> bool:
    return len(rows) > 0 and ATOMS.issuperset(map(type, chain.from_iterable(rows)))


def _plain_type(name: str) -> Any:
    """The reader's own class of that name: a built-in one, or one of those that values here are of."""
    module, _, kind = name.rpartition(".")
    found = getattr(import_module(module or "builtins"), kind) if not module or name in _KINDS else None
    if not isinstance(found, type):
        raise Unreadable(f"{name} is not a type that values have here")
    return found


def _is_plain_type(kind: type) -> bool:
    name = name_of(kind)
    module = sys.modules.get(kind.__module__)
    return (kind.__module__ == "builtins" or name in _KINDS) and getattr(module, kind.__qualname__, None) is kind


def _library_name(value: Any) -> tuple[str, str] | None:
    """(module, name) of a function of one of the LIBRARY's modules."""
    if not isinstance(value, (FunctionType, BuiltinFunctionType)):
        return None
    module, name = value.__module__, value.__name__
    if module is None or module.partition(".")[0] not in LIBRARY:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value and name[0] != "_" else None


def describe(error: BaseException) -> str:
    """One line: the type, the message and the last line of the solution or tests that it came through; what the other
    process says of it if it came from there."""
    if told := error.__dict__.get("dare_bench_told"):
        return str(told)
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    except BaseException:
        text = f"{type(error).__name__} (its message cannot be printed)"
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file in ("<solution>", "<tests>"):
            place = f" ({file[1:-1]}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return text[:MESSAGE_LENGTH].removesuffix(": ") + place


def dumps(value: Any) -> str:
    """JSON. Raises ValueError for an integer of more digits than Python reads."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.default_max_str_digits)
    try:
        return "".join(_encode(value, 0))
    finally:
        sys.set_int_max_str_digits(limit)


def _no(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


def loads(text: str) -> Any:
    try:
        value, end = _scan(text, 0)
    except (StopIteration, ValueError, RecursionError) as error:
        raise Unreadable(f"no JSON: {error}") from None
    if end != len(text):
        raise Unreadable("more than JSON")
    return value


_encode = make_encoder(None, _no, encode_basestring_ascii, None, ":", ",", False, False, True)
_constants = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_syntax: Any = SimpleNamespace(
    strict=True,
    object_hook=None,
    object_pairs_hook=None,
    parse_float=float,
    parse_int=int,
    parse_constant=_constants.__getitem__,
)
_scan = make_scanner(_syntax)
