"""Shared by all executors: the order of jobs, and running a job with its exceptions caught."""

from __future__ import annotations

import os
import pickle
import socket
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from dare_bench.errors import DareError
from dare_bench.protocols import Done, Job


class Graph:
    """Waiting, running and finished jobs.

    Raises:
        ValueError: duplicate job names, an unknown predecessor, a cycle.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = {job.name: job for job in jobs}
        if len(self.jobs) < len(jobs):
            names = [job.name for job in jobs]
            raise ValueError(f"two jobs have the name {next(name for name in names if names.count(name) > 1)!r}")
        for job in jobs:
            if missing := [name for name in job.after if name not in self.jobs]:
                raise ValueError(f"job {job.name!r} comes after {missing[0]!r}, which is not one of the jobs")
        self._sorter = TopologicalSorter({job.name: job.after for job in jobs})
        try:
            self._sorter.prepare()
        except CycleError as error:
            cycle = ", ".join(name for name in self.jobs if name in error.args[1])
            raise ValueError(f"jobs wait for each other: {cycle}") from error
        self._ready = set(self._sorter.get_ready())
        self._results: dict[str, Done] = {}

    def take(self) -> Job | None:
        """Start the next job, in the order given, whose predecessors all succeeded; None if there is none."""
        name = next((name for name in self.jobs if name in self._ready), None)
        if name is None:
            return None
        self._ready.remove(name)
        return self.jobs[name]

    def finish(self, done: Done) -> list[Done]:
        """Record the result of a job; returns it and those of jobs skipped because of it."""
        self._results[done.name] = done
        self._sorter.done(done.name)
        results = [done]
        for name in self._sorter.get_ready():
            failed = next((earlier for earlier in self.jobs[name].after if not self._results[earlier].ok), None)
            if failed is None:
                self._ready.add(name)
            else:
                results += self.finish(Done(name, skipped=failed))
        return results


def dependents(after: Mapping[str, Sequence[str]], roots: Iterable[str]) -> set[str]:
    """``roots`` and all their successors. ``after``: the predecessors of each name."""
    names = set(roots)
    for name in TopologicalSorter(after).static_order():
        if names.intersection(after[name]):
            names.add(name)
    return names


def work(function: Callable[[Any], Any], job: Job, where: str = "") -> Done:
    """Run a job in this process. Its exceptions become its result; KeyboardInterrupt and the like propagate."""
    begin = time.perf_counter()
    place = f"{where}{', ' if where else ''}process {os.getpid()} on {socket.gethostname()}"
    try:
        value = function(job.payload)
    except Exception as error:
        return Done(job.name, error=_portable(error), seconds=time.perf_counter() - begin, where=place)
    return Done(job.name, value, seconds=time.perf_counter() - begin, where=place)


def _portable(error: Exception) -> Exception:
    """The exception if it can be pickled, else a DareError with its message."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # bytes made here
            return error
    except Exception:  # pickling runs the exception's code, which may raise anything
        pass
    return DareError(f"{type(error).__name__}: {error}")


class Local:
    """Runs jobs in this process, one after another; exceptions of a job are its result, Ctrl-C ends all. The arguments
    are not used."""

    workers = 1

    def __init__(self, *, workers: int = 1, device: str | None = None, address: str | None = None) -> None:
        return

    def run(self, function: Callable[[Any], Any], jobs: Sequence[Job]) -> Generator[Done, None, None]:
        """See :meth:`dare_bench.protocols.Executor.run`."""
        graph = Graph(jobs)
        while (job := graph.take()) is not None:
            yield from graph.finish(work(function, job))
