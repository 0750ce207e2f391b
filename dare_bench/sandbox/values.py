"""Values as text, from one process to another one that does not trust it.

A message is JSON: items, and the nodes that they refer to. An item is an atom (None, bool, int, float, str) or ``[n]``,
the n-th node; a node is the name of a type and the content of an object, so cycles and shared objects are kept. The
reader makes every object itself, only of the types listed here: no value has methods or comparisons of the writer's. An
object of a class derived from one of these is read as that base; any other one is exported: it stays in its process,
and the reader gets a stand-in (peer.py).
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from types import BuiltinFunctionType, FunctionType

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to load than all the rest
    from collections.abc import Callable
    from typing import Any

ATOMS = frozenset({int, float, str, bool, type(None)})
SEQUENCES = {"list", "tuple", "set", "frozenset", "collections.deque", "dict_keys", "dict_values", "dict_items"}
MAPPINGS = {"dict", "collections.OrderedDict", "collections.Counter", "collections.defaultdict"}
SHELLS = {"list", "set", "collections.deque", "bytearray", *MAPPINGS}  # created empty, filled after all nodes exist
CHANGEABLE = {*SHELLS, "numpy.ndarray"}
# Objects that are created from these arguments.
PARTS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
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
_KINDS = {*SEQUENCES, *SHELLS, *PARTS, *_OTHERS, "numpy.generic"}
_COMMON = {id(kind): kind for kind in (list, tuple, dict, set)}  # by id: a class may be unhashable
NUMBERS = "biufcmMSU"  # numpy's types without references to objects
# Modules whose functions are those of the reader: the tests of a document may rely on what a solution imports. None of
# them loads, stores or evaluates anything.
LIBRARY = frozenset(
    {
        *("math", "cmath", "statistics", "fractions", "random", "collections", "itertools", "functools", "operator"),
        *("heapq", "bisect", "copy", "re", "string"),
    }
)
_PACKAGES = ("numpy", "scipy", "pandas", "sympy", "networkx", "sortedcontainers", "regex", "dateutil", "pytz")
MESSAGE_LENGTH = 2000


class Unreadable(Exception):
    """Not a valid message."""


def name_of(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def base_of(value: Any) -> tuple[str, Any]:
    """(name, type): the first of the types listed here in the value's classes; ("", None) for none."""
    if kind := _COMMON.get(id(type(value))):
        return kind.__name__, kind
    bases = ((name_of(base), base) for base in type(value).__mro__)
    return next(((name, base) for name, base in bases if name in _KINDS), ("", None))


def plain_type(name: str) -> Any:
    """The reader's class of that name: a built-in one, or one of the types listed here."""
    module, _, kind = name.rpartition(".")
    class_ = getattr(import_module(module or "builtins"), kind) if not module or name in _KINDS else None
    if not isinstance(class_, type):
        raise Unreadable(f"{name} is not a type of values")
    return class_


def is_plain_type(kind: type) -> bool:
    name = name_of(kind)
    module = sys.modules.get(kind.__module__)
    return (kind.__module__ == "builtins" or name in _KINDS) and getattr(module, kind.__qualname__, None) is kind


def is_library(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _PACKAGES or (root in sys.stdlib_module_names and root[:2] != "__")


def library_name(value: Any) -> tuple[str, str] | None:
    """(module, name) of a function of one of the LIBRARY's modules."""
    if not isinstance(value, (FunctionType, BuiltinFunctionType)):
        return None
    module, name = value.__module__, value.__name__
    if module is None or module.partition(".")[0] not in LIBRARY:
        return None
    return (module, name) if getattr(sys.modules.get(module), name, None) is value and name[0] != "_" else None


def describe(error: BaseException) -> str:
    """One line: the type, the message and the last line of the solution or tests in the traceback; the other process's
    description if the error came from there."""
    if description := error.__dict__.get("dare_bench_description"):
        return str(description)
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


def _with_long_integers(function: Callable[[Any], Any], argument: Any) -> Any:
    """The result of a function that converts integers of any number of digits."""
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return function(argument)
    finally:
        sys.set_int_max_str_digits(limit)


_encode = json.JSONEncoder(check_circular=False, separators=(",", ":")).encode


def dumps(value: Any) -> str:
    text: str = _with_long_integers(_encode, value)
    return text


def loads(text: str) -> Any:
    try:
        return _with_long_integers(json.loads, text)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no JSON: {error}") from None
