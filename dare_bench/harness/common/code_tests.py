"""Code that a document of MBPP requires before its tests, which both harnesses omit."""

from __future__ import annotations

import builtins
import re
from collections.abc import Mapping
from typing import Any


def setup_code(doc: Any) -> str:
    """The code that a document (a row of MBPP or MBPP+) requires before its tests; usually empty."""
    if not isinstance(doc, Mapping):
        return ""
    lines = [*(doc.get("test_imports") or ()), doc.get("test_setup_code") or ""]
    return "\n".join(line for line in lines if isinstance(line, str) and line.strip())


def with_setup(doc: Any, tests: str) -> str:
    """The tests of a document, after :func:`built_ins_line` and :func:`setup_code`."""
    setup = setup_code(doc)
    return built_ins_line(doc) + (f"{setup}\n" if setup else "") + tests


def built_ins_line(doc: Any) -> str:
    """The line that declares which built-in name a document (MBPP's 126: ``sum``) expects the solution to define;
    usually empty. In tests all other names of built-ins are Python's, whatever a solution defines."""
    if not isinstance(doc, Mapping):
        return ""
    defined = re.findall(r"^def (\w+)", str(doc.get("code")), re.MULTILINE)
    called = re.findall(r"\b(\w+)\(", str(doc.get("test_list")))
    names = dict.fromkeys(name for name in defined if name in called and hasattr(builtins, name))
    return f"global {', '.join(names)}\n" if names else ""
