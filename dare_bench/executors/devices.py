"""One worker process a device (a GPU; on CPU, a share of the cores), on ``concurrent.futures``.

Each device has a pool of its own with one worker: a worker that dies breaks its own pool alone, and it is plain whose
fault it was. On a GPU every job gets a fresh process, which gives its memory back; on CPU a worker is used again.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from dare_bench.errors import DareError, UsageError
from dare_bench.executors.graph import Graph, work
from dare_bench.executors.lifeline import Lifeline, hold
from dare_bench.protocols import Done, Job

TRIES = 2
"""How often a job is begun whose worker dies under it: once may be chance, twice is the job."""


class Devices:
    """Runs jobs in ``workers`` processes, each with a device of its own.

    Args:
        workers: how many; with GPUs, no more than are visible.
        device: ``cpu`` uses no GPU though there are some.
        address: not used; every executor takes it.

    Raises:
        UsageError: a single GPU is named, or there are fewer than ``workers``.
    """

    name = "devices"

    def __init__(self, *, workers: int = 1, device: str | None = None, address: str | None = None) -> None:
        self.workers = workers
        self.gpus = _gpus(workers, device)

    def run(self, function: Callable[[Any], Any], jobs: Sequence[Job]) -> Generator[Done, None, None]:
        """See :meth:`dare_bench.protocols.Executor.run`."""
        graph = Graph(jobs)
        workers = [_Worker(index, self.workers, self.gpus) for index in range(min(self.workers, len(jobs)))]
        free = workers[::-1]
        busy: dict[Future[Done], tuple[_Worker, Job]] = {}
        deaths: Counter[str] = Counter()

        def fill() -> None:
            while free and (job := graph.take()) is not None:
                worker = free.pop()
                busy[worker.begin(function, job)] = (worker, job)

        try:
            fill()
            while busy:
                finished: list[Done] = []
                for future in wait(busy, return_when=FIRST_COMPLETED).done:
                    worker, job = busy.pop(future)
                    done = _result(future, job, worker)
                    if done is None:
                        deaths[job.name] += 1
                        worker.end()
                        if deaths[job.name] < TRIES:
                            busy[worker.begin(function, job)] = (worker, job)
                            continue
                        done = Done(job.name, error=_died(job), where=worker.where)
                    worker.rest()
                    free.append(worker)
                    finished += graph.finish(done)
                fill()
                yield from finished
        finally:
            for worker in workers:
                worker.end()


def _result(future: Future[Done], job: Job, worker: _Worker) -> Done | None:
    """What became of a job; None if its worker died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # a payload or a value that cannot be pickled
        return Done(job.name, error=error, where=worker.where)


class _Worker:
    """A device and the process that works on it, started when there is work."""

    def __init__(self, index: int, workers: int, gpus: Sequence[str]) -> None:
        self._gpu = gpus[index] if gpus else None
        self._threads = max(1, _cores() // workers)
        self.where = f"GPU {self._gpu}" if gpus else f"worker {index}"
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: Lifeline | None = None

    def begin(self, function: Callable[[Any], Any], job: Job) -> Future[Done]:
        """Start a job, in a new process if there is none."""
        if self._pool is None:
            context = get_context("spawn")  # CUDA and threads do not survive a fork
            self._lifeline = Lifeline(context)
            arguments = (self._lifeline.far, self._gpu, self._threads)
            self._pool = ProcessPoolExecutor(1, context, _set_up, arguments)
        return self._pool.submit(work, function, job, self.where)

    def rest(self) -> None:
        """A job is over."""
        if self._gpu is not None:
            self.end()

    def end(self) -> None:
        """End the process, whatever it does."""
        if self._pool is not None and self._lifeline is not None:
            self._lifeline.cut()
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._lifeline = None


def _set_up(far: Connection, gpu: str | None, threads: int) -> None:
    """In the worker, before anything is imported: its life, its device, its share of the cores."""
    hold(far)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends its workers
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    elif "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if (torch := sys.modules.get("torch")) is not None:  # the parent's own script imports it
            torch.set_num_threads(threads)


def _gpus(workers: int, device: str | None) -> list[str]:
    """The GPUs to use, as CUDA_VISIBLE_DEVICES names them; none means CPU."""
    if device is not None and device.partition(":")[0] != "cuda":
        return []
    if device is not None and ":" in device:
        raise UsageError(f"device {device!r} names one GPU, and {workers} workers were asked for; say cuda, or nothing")
    import torch  # counts them without taking one

    count = torch.cuda.device_count()
    if count == 0:
        return []
    if workers > count:
        raise UsageError(f"{workers} devices were asked for and {count} can be seen; ask for fewer, or --device cpu")
    named = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return (named or [str(index) for index in range(count)])[:workers]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _died(job: Job) -> DareError:
    return DareError(
        f"{job.name}: its worker process died {TRIES} times without a word; the usual reasons are the system's memory"
        " running out, a crash in native code, or a script without 'if __name__ == \"__main__\":' around its call"
    )
