"""A time limit for each answer that a harness's code reads or compares.

A regular expression may take for ever on one text, and so may the comparison of two formulas. Ordinary code is ended by
a signal, for which Python, ``re`` and ``regex`` look while they work: it costs nothing and counts processor time, so
that a busy machine changes no score. Code that compares formulas may stay in one long C call and runs under
:class:`~dare_bench.harness.common.worker_process.WorkerProcess`, in a process that can be killed. All of it works in
the scoring process (:mod:`~dare_bench.harness.common.scoring_process`); signals need its main thread.
"""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from dare_bench.errors import DataError

ANSWER_SECONDS = 10.0
"""Processor time for one answer, where no formulas are compared."""


class AnswerTimeout(BaseException):
    """The time for an answer has passed. Not an ``Exception``, because harness code often swallows those."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """What takes longer in it, in processor time, ends with AnswerTimeout. Limits do not nest; ``inf`` is none."""
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
    """Answers that harness code goes through, one after the other, with ``seconds`` for what it does with each."""

    def __init__(self, answers: Iterable[Any], seconds: float = ANSWER_SECONDS) -> None:
        super().__init__(answers)
        self.seconds, self._place, self._ended = seconds, 0, set[int]()

    def __iter__(self) -> Iterator[Any]:
        for self._place, answer in enumerate(super().__iter__()):
            with within(self.seconds):
                yield answer

    def give_up(self) -> int:
        """Make the answer that has just timed out empty, and return its place.

        Raises:
            DataError: it is empty already: the code does not end whatever the answer is.
        """
        place = self._place
        if place in self._ended:
            raise DataError(f"the code that reads answers does not end within {self.seconds:g} s even for an empty one")
        self._ended.add(place)
        self[place] = "" if isinstance(self[place], str) else [""] * len(self[place])
        return place
