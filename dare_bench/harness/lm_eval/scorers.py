"""The function that scores a task of lm-eval, and whether it compares formulas."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MATHEMATICAL = re.compile(r"\b(math_verify|sympy|latex2sympy\w*|is_equiv|math_equal|\w*boxed\w*)\b")


def scorer_of(task: Any) -> Callable[..., Any] | None:
    """The function that an lm-eval task scores with, if it has one of its own."""
    function = getattr(task.config, "process_results", None)
    if not callable(function):
        function = getattr(type(task), "process_results", None)
        if not callable(function) or function.__module__.startswith("lm_eval.api."):
            return None
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else None


@functools.cache
def _source(path: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()
    return ""


def is_mathematical(task: Any) -> bool:
    """Does the file of the task's scorer read or compare formulas?"""
    scorer = scorer_of(task) if getattr(task, "OUTPUT_TYPE", None) == "generate_until" else None
    return scorer is not None and bool(_MATHEMATICAL.search(_source(scorer.__code__.co_filename)))
