"""Work on many items in several forked processes, which share what this process has in memory."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import TypeVar

from dare_bench.errors import RunError

Item = TypeVar("Item")
Result = TypeVar("Result")
MOST_PROCESSES = 16
_END_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux. A process that stayed would hold the lock of the site's folder."""


def processors() -> int:
    """The number of processes that work at the same time here; 1 where processes cannot be forked safely, or at all."""
    if sys.platform != "linux" or multiprocessing.current_process().daemon:
        return 1
    return min(len(os.sched_getaffinity(0)), MOST_PROCESSES)


@contextmanager
def mapped(work: Callable[[Item], Result], items: Sequence[Item], processes: int) -> Iterator[Iterator[Result]]:
    """``work(item)`` of each item, in the order of the items.

    With several processes, what ``work`` changes in memory is lost, except what it returns, and each takes every n-th
    item. An exception of ``work`` is raised here in its item's turn. When the block ends, so do the processes; they
    also end if this process is killed.

    Raises:
        RunError: a process ended before its work was done.
    """
    count = min(processes, len(items))
    if count < 2:
        yield map(work, items)
        return
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe() for _ in range(count)]
    workers = [
        context.Process(target=_work, args=(work, items[at::count], pipes, at, os.getpid()), daemon=True)
        for at in range(count)
    ]
    try:
        for worker in workers:
            worker.start()
        for _, theirs in pipes:
            theirs.close()
        yield _received([ours for ours, _ in pipes], len(items))
    finally:
        for worker, (ours, _) in zip(workers, pipes, strict=True):
            ours.close()
            if worker.pid is not None:
                worker.kill()
                worker.join()


def _received(connections: Sequence[Connection], count: int) -> Iterator[Result]:
    for at in range(count):
        try:
            result, error = connections[at % len(connections)].recv()
        except (EOFError, ConnectionError):
            raise RunError(
                "a process of the build was killed; if memory is short, give the build fewer processors"
                " (taskset -c 0), and run the same command again"
            ) from None
        if error is not None:
            raise error
        yield result


def _work(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    pipes: Sequence[tuple[Connection, Connection]],
    at: int,
    parent: int,
) -> None:
    """In a forked process: send the result of each item, or an exception, which ends the work."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    for name in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_DFL)
    for number, (ours, theirs) in enumerate(pipes):
        ours.close()
        if number != at:
            theirs.close()
    connection = pipes[at][1]
    ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    for item in items:
        try:
            connection.send((work(item), None))
        except BaseException as error:
            connection.send((None, error))
            break
    os._exit(0)  # without the parent's work at its exit
