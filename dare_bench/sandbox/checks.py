"""Sent to the worker before and after the tests: has the solution changed what the tests are judged with?

Its source runs with built-ins of its own, copied before the solution ran. These are the cheap tricks; docs/sandbox.md
says what is left.
"""

from typing import Any

_OWN = {"builtins", "sys", "solution", "__main__"}


def check(pristine: dict[str, Any], current: dict[str, Any], modules: dict[str, Any]) -> None:
    """Raises RuntimeError for a replaced built-in, a library function replaced by one of the solution's, and a class
    of the solution whose objects equal everything."""
    for name, value in pristine.items():
        if name != "_" and current.get(name) is not value:  # "_" is the interactive prompt's
            raise RuntimeError(f"the code replaced the built-in {name!r}")
    for module, content in list(modules.items()):
        if module in _OWN:
            continue
        if "solution" in (type(content).__module__, getattr(content, "__module__", None)):
            raise RuntimeError(f"the code replaced the module {module}")
        for name, value in list(getattr(content, "__dict__", {}).items()):
            if from_solution(value):
                raise RuntimeError(f"the code replaced {module}.{name}")
    for kind in subclasses(object):
        if equals_all(kind):
            raise RuntimeError(f"objects of class {kind.__name__!r} equal everything")


def from_solution(value: object) -> bool:
    """A plain function that the solution's source defines."""
    return isinstance(value, type(check)) and value.__code__.co_filename == "<solution>"


def subclasses(top: type) -> set[type]:
    """All classes below ``top``."""
    found: set[type] = set()
    to_do = [top]
    while to_do:
        below: list[type] = type.__subclasses__(to_do.pop())
        new = [kind for kind in below if kind not in found]
        found.update(new)
        to_do.extend(new)
    return found


def equals_all(kind: type) -> bool:
    """Its ``__eq__`` is the solution's, and an empty object of it equals things that it cannot know."""
    if not any(from_solution(vars(base).get("__eq__")) for base in kind.__mro__):
        return False
    makers: list[Any] = [base for base in kind.__mro__ if base.__module__ == "builtins" and "__new__" in vars(base)]
    try:
        made = makers[0].__new__(kind)  # past its own __new__ and __init__
        return all(bool(made == other) for other in (object(), 8158729305.5, [[]]))
    except Exception:  # it looks at what an empty object does not have, as an honest one does
        return False
