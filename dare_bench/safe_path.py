"""Keeps the current folder out of Python's search path in the processes that are started.

Python with ``-c`` or ``-m``, as ``multiprocessing`` starts its workers, searches the current folder first: a
``multiprocessing.py`` there, in a folder of results that was downloaded, would be executed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_VARIABLE = "PYTHONSAFEPATH"


@contextlib.contextmanager
def safe_path() -> Iterator[None]:
    """Inside, Python processes that are started, and those that they start, import nothing from the current folder."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before
