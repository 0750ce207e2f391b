"""A time limit for each answer that harness code reads or compares, in the main thread of the scoring process.

Ordinary code is ended by a signal, which Python, ``re`` and ``regex`` handle while they work; it counts processor time,
so that a busy machine changes no score. The comparison of formulas may stay in one long C call (``10^{10^{10}}``), so
it runs under :class:`~dare_bench.sandbox.worker_process.WorkerProcess`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import re
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from dare_bench.errors import DataError
from dare_bench.reading import read_source

ANSWER_SECONDS = 10.0
"""Processor time for one answer, if no formulas are compared."""
ALGEBRA = r"math_verify|sympy|latex2sympy\w*"
"""Packages that compare formulas, as a regular expression."""


class AnswerTimeout(BaseException):
    """The time for an answer has passed. Not an ``Exception``, because harness code often swallows those."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ends a block that takes more processor time with AnswerTimeout. Limits do not nest; ``inf`` means unlimited."""
    if math.isinf(seconds):
        yield
        return

    def end(*_: object) -> None:
        raise AnswerTimeout(f"not done within {seconds:g} s")

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Answers(list[Any]):
    """Answers that harness code iterates over, with ``seconds`` for what it does with each."""

    def __init__(self, answers: Iterable[Any], seconds: float) -> None:
        super().__init__(answers)
        self.seconds, self._index, self._emptied = seconds, 0, set[int]()

    def __iter__(self) -> Iterator[Any]:
        for self._index, answer in enumerate(super().__iter__()):
            with within(self.seconds):
                yield answer

    def give_up(self) -> int:
        """Make the answer that has just timed out empty, and return its index; raises DataError."""
        index = self._index
        if index in self._emptied:
            raise DataError(f"the code that reads answers does not end within {self.seconds:g} s even for an empty one")
        self._emptied.add(index)
        self[index] = "" if isinstance(self[index], str) else [""] * len(self[index])
        return index


def source_names(code: Any, words: str) -> bool:
    """Does the file that defines a function or class contain one of these words (a regular expression)?"""
    file = inspect.getsourcefile(code)
    return file is not None and bool(re.search(rf"\b(?:{words})\b", _source(file)))


@functools.cache
def _source(file: str) -> str:
    return read_source(file, DataError)
