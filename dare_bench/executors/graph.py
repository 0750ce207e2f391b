"""What all executors share: the order of jobs, and running one of them so that nothing it does escapes."""

from __future__ import annotations

import os
import pickle
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from dare_bench.errors import DareError
from dare_bench.protocols import Done, Job


class Graph:
    """Jobs that wait, are under way, or are done.

    Raises:
        ValueError: two jobs of one name, a job after one that does not exist, a circle.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = {job.name: job for job in jobs}
        if len(self.jobs) < len(jobs):
            names = [job.name for job in jobs]
            raise ValueError(f"two jobs are named {next(name for name in names if names.count(name) > 1)!r}")
        for job in jobs:
            if missing := [name for name in job.after if name not in self.jobs]:
                raise ValueError(f"job {job.name!r} comes after {missing[0]!r}, which is none of the jobs")
        self._waiting = dict(self.jobs)
        self._done: dict[str, Done] = {}
        self._check_for_circles()

    def take(self) -> Job | None:
        """The next job, in the order given, whose predecessors are all done well; it is then under way."""
        for job in self._waiting.values():
            if all(name in self._done and self._done[name].ok for name in job.after):
                return self._waiting.pop(job.name)
        return None

    def finish(self, done: Done) -> list[Done]:
        """Note what became of a job; returns it, and the jobs that are skipped because of it."""
        self._done[done.name] = done
        found = [done]
        if not done.ok:
            for job in [job for job in self._waiting.values() if done.name in job.after]:
                if self._waiting.pop(job.name, None) is not None:
                    found += self.finish(Done(job.name, skipped=done.name))
        return found

    def ordered(self) -> list[Job]:
        """All jobs, each behind its predecessors."""
        found: dict[str, Job] = {}
        while len(found) < len(self.jobs):
            ready = [j for j in self.jobs.values() if j.name not in found and all(name in found for name in j.after)]
            if not ready:
                raise ValueError(f"jobs wait for each other: {', '.join(n for n in self.jobs if n not in found)}")
            found |= {job.name: job for job in ready}
        return list(found.values())

    def _check_for_circles(self) -> None:
        self.ordered()


def work(function: Callable[[Any], Any], job: Job, where: str = "") -> Done:
    """Run one job, here. What it raises becomes its result; Ctrl-C and the like pass."""
    begin = time.perf_counter()
    place = f"{where}{', ' if where else ''}process {os.getpid()} on {socket.gethostname()}"
    try:
        value = function(job.payload)
    except Exception as error:
        seconds = time.perf_counter() - begin
        return Done(job.name, error=_portable(error), seconds=seconds, where=place, traceback=traceback.format_exc())
    return Done(job.name, value, seconds=time.perf_counter() - begin, where=place)


def _portable(error: Exception) -> Exception:
    """The exception, if it survives a trip to another process; else its words."""
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):  # our own bytes of a moment ago
            return error
    except Exception:  # pickling runs the exception's own code, which may raise anything: its words are told below
        pass
    return DareError(f"{type(error).__name__}: {error}")
