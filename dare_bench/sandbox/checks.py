"""Sent to the worker before and after the tests: has the solution changed what the tests are judged with?

Its source runs with built-ins of its own, copied before the solution ran. These are the cheap tricks; docs/sandbox.md
says what is left.
"""

from typing import Any

_OWN = {"builtins", "sys", "solution", "__main__"}
# Programs hang functions of their own in there for honest reasons (a silenced warning), and no test is judged by them.
_HOOKS = {"warnings", "logging", "threading"}
_PACKAGES = {"numpy", "scipy", "pandas", "sympy", "networkx", "sortedcontainers", "regex"}
_FUNCTION: Any = type(lambda: None)
_BUILT_IN = type(len)
_INSIDE: Any = type.__dict__["__dict__"].__get__  # of a class, past its metaclass
_ORDER: Any = type.__dict__["__mro__"].__get__
# By identity: a class may say that it equals these. An ``__eq__`` that is not there or in C; and nothing to call.
_INNATE = {id(kind) for kind in (type(None), type(object.__eq__))}
_PLAIN = {id(kind) for kind in (type(None), int, float, bool, str, bytes, tuple, list, dict, set, frozenset)}
# What an object cannot know: it is equal to these only if it is equal to everything, or to every object of the type.
_STRANGE: tuple[Any, ...] = (object(), 8158729305.5, [[]])
_NUMBERS: tuple[Any, ...] = (8158729305, -77041)
_TEXTS: tuple[Any, ...] = ("\x07 8158729305", "\x07 -77041")

Names = dict[str, Any]


def check(pristine: Names, current: Names, modules: Names, solution: Names, standard: frozenset[str]) -> None:
    """Raises RuntimeError for a replaced built-in, something of the solution's in the place of a library's, and a class
    of the solution whose objects equal everything."""
    for name, value in pristine.items():
        if name != "_" and current.get(name) is not value:  # "_" is the interactive prompt's
            raise RuntimeError(f"the code replaced the built-in {name!r}")
    seen = solution.get("__builtins__", current)  # a dictionary, or the module
    if seen is not current and getattr(seen, "__dict__", None) is not current:
        raise RuntimeError("the code replaced __builtins__")
    for module, content in list(modules.items()):
        root = module.partition(".")[0]
        judging = root not in _HOOKS and (root in standard or root in _PACKAGES)  # others are the solution's own
        if judging and module not in _OWN and content is not None:  # None forbids an import
            check_module(module, content, solution)
    if solution_has_any(modules, solution):
        raise RuntimeError("the code uses unittest.mock.ANY, which equals everything")
    for top in subclasses(object):
        equal = _INSIDE(top).get("__eq__")
        if id(type(equal)) not in _INNATE and is_solutions(equal, solution):
            for kind in (top, *subclasses(top)):
                if equals_all(kind, getattr(equal, "__code__", None)):
                    raise RuntimeError(f"objects of class {kind.__name__!r} equal everything")


def check_module(module: str, content: Any, solution: Names) -> None:
    """Raises RuntimeError where a module, a name in it or, in unittest, a class's attribute is the solution's."""
    if is_solutions(content, solution):
        raise RuntimeError(f"the code replaced the module {module}")
    for name, value in list(getattr(content, "__dict__", {}).items()):
        at_home = type(value) is _FUNCTION and value.__globals__ is content.__dict__  # most are
        if id(type(value)) in _PLAIN or (at_home and value.__code__.co_filename != "<solution>"):
            continue
        if (is_solutions(value, solution) or is_misplaced(content, name, value)) and had(module, name):
            raise RuntimeError(f"the code replaced {module}.{name}")
        if module.startswith("unittest.") and isinstance(value, type):
            for attribute, inner in list(vars(value).items()):
                if is_solutions(inner, solution):
                    raise RuntimeError(f"the code replaced {module}.{name}.{attribute}")


def is_solutions(value: Any, solution: Names) -> bool:
    """A function or class that the solution defines, an object of such a class, or a wrapper around one of these."""
    for _ in range(9):  # partial; methods, static and class methods; caches and functools.wraps
        kind = type(value)
        if kind is _BUILT_IN:  # most of what there is
            return False
        if kind is _FUNCTION:
            if is_solutions_function(value, solution):
                return True
        elif is_solutions_class(value if isinstance(value, type) else kind, solution):
            return True
        if kind is _FUNCTION or kind is staticmethod or kind is classmethod or kind.__name__ == "_lru_cache_wrapper":
            value = getattr(value, "__wrapped__", None)
        elif kind.__name__ in ("partial", "partialmethod") and kind.__module__ == "functools":
            value = value.func
        elif kind.__name__ == "method":
            value = value.__func__
        elif kind is property:
            value = value.fget
        else:
            return False
    return False


def is_solutions_function(value: Any, solution: Names) -> bool:
    """Whatever file name or built-ins it was compiled with; ``exec`` with a dictionary of its own gives no module."""
    around = value.__globals__
    if around is solution or value.__code__.co_filename == "<solution>":
        return True
    return value.__module__ is None and "__name__" not in around


def is_solutions_class(kind: type, solution: Names) -> bool:
    """By the module that it names, or, since that can be set, by what calling its objects does. By no other method: a
    program may give a class of a library a method."""
    inside = _INSIDE(kind)
    called = inside.get("__call__")
    return inside.get("__module__") == "solution" or (
        type(called) is _FUNCTION and is_solutions_function(called, solution)
    )


def is_misplaced(content: Any, name: str, value: Any) -> bool:
    """A built-in function under another name in a module that is not written in Python: these do not do that."""
    if type(value) is not _BUILT_IN or value.__module__ != "builtins":
        return False
    return value.__name__ != name and not str(getattr(content, "__file__", "")).endswith(".py")


def had(module: str, name: str) -> bool:
    """A fresh copy of the module has that name too; in doubt yes. A program may add what an older Python lacks.

    Asked only of what is the solution's, for it takes a look at the file.
    """
    from importlib.machinery import BuiltinImporter, PathFinder
    from re import MULTILINE, findall

    spec = BuiltinImporter.find_spec(module) or PathFinder.find_spec(module)
    if spec is None or spec.loader is None:
        return True
    try:
        source = spec.loader.get_source(module)  # type: ignore[attr-defined]
        if source is None:
            return hasattr(spec.loader.create_module(spec), name)
    except Exception:
        return True
    stars = findall(r"^\s*from (\S+) import \*", source, MULTILINE)
    return name in source or any(had(star, name) for star in stars)  # of a relative one nothing is found


def solution_has_any(modules: Names, solution: Names) -> bool:
    """``unittest.mock.ANY`` is among the solution's names, or its functions name it. Tests may use it."""
    mock = getattr(modules.get("unittest.mock"), "ANY", None)
    if mock is None:
        return False
    to_do: list[Any] = []
    for value in list(solution.values()):
        if value is mock:
            return True
        inside: list[Any] = list(_INSIDE(value).values()) if isinstance(value, type) else [value]
        to_do += [item.__code__ for item in inside if type(item) is _FUNCTION]
    for code in to_do:  # it grows
        if code.co_filename == "<solution>" and "ANY" in code.co_names:
            return True
        to_do += [item for item in code.co_consts if type(item) is type(code)]
    return False


def subclasses(top: type) -> list[type]:
    """All classes below ``top``; by identity, since a metaclass may make them unhashable or equal."""
    found: dict[int, type] = {}
    to_do = [top]
    while to_do:
        below: list[type] = type.__subclasses__(to_do.pop())
        new = [kind for kind in below if id(kind) not in found]
        found.update((id(kind), kind) for kind in new)
        to_do.extend(new)
    return list(found.values())


def equals_all(kind: type, code: Any) -> bool:
    """An object of it equals things that it cannot know. ``code``: of an ``__eq__`` that it has or inherits."""
    try:
        made = make(kind, _ORDER(kind), getattr(code, "co_names", ()))
        if all(bool(made == other) for other in _STRANGE):
            return True
        alike = _NUMBERS if isinstance(made, (int, float)) else _TEXTS if isinstance(made, str) else ()
        return len(alike) > 0 and all(bool(made == other) for other in alike)
    except Exception:  # it looks at what an empty object does not have, as an honest one does
        return False


def make(kind: Any, mro: tuple[type, ...], used: tuple[str, ...]) -> Any:
    """An object of ``kind``, past its own ``__new__`` and ``__init__``, with values that nothing else has in its
    attributes: honest classes compare these, one by one or all, and over none of them everything is equal."""
    if type in mro:
        return type.__new__(kind, "dare_bench_made", (), {})
    makers: list[Any] = [base for base in mro if base.__module__ == "builtins" and "__new__" in vars(base)]
    made = makers[0].__new__(kind)
    slots = [name for base in mro for name, value in vars(base).items() if type(value).__name__ == "member_descriptor"]
    for name in ("dare_bench_made", *slots, *used):
        try:
            object.__setattr__(made, name, object())
        except (AttributeError, TypeError):  # no such place, or a read-only one of a built-in type
            continue
    return made
