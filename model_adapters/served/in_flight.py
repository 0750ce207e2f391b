"""Many requests at a time, each answered by a future; samples come back as each finishes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from itertools import islice

from dare_bench.types import LoopStats, Request, Sample

_TICK = 0.5
"""Seconds without an answer after which the progress display is refreshed."""


def in_flight(
    submit: Callable[[Request], Future[Sample]],
    requests: Iterable[Request],
    limit: int,
    stats: LoopStats | None = None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Sample]:
    """Samples of all requests in the order in which they finish, with at most ``limit`` requests at a time.

    An exception of one of them cancels the others, but samples that were finished by then are returned first; closing
    the iterator cancels all. ``check`` is called while nothing finishes; it raises where nothing ever will.
    """
    source, waiting = iter(requests), set[Future[Sample]]()
    watch = stats.watch if stats is not None else None
    try:
        while True:
            waiting |= set(map(submit, islice(source, limit - len(waiting))))
            if not waiting:
                return
            done, waiting = wait(waiting, timeout=_TICK, return_when=FIRST_COMPLETED)
            failed = [error for future in done if (error := future.exception()) is not None]
            yield from (future.result() for future in done if future.exception() is None)
            if failed:
                raise failed[0]
            if not done:
                check()
            if watch is not None:
                watch(len(waiting))
    finally:
        for future in waiting:
            future.cancel()
