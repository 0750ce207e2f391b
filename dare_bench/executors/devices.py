"""One worker process for each device (a GPU, or on CPU a share of the cores), on ``concurrent.futures``.

Each device has a pool with one worker, so that a dying worker breaks only that pool and its job is known. On a
GPU every job gets a fresh process, which frees its memory; on CPU workers are reused.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from dare_bench.errors import DareError, PluginWarning, UsageError
from dare_bench.executors.graph import Graph, work
from dare_bench.protocols import Done, Job
from dare_bench.safe_path import safe_path

TRIES = 2
"""Attempts at a job whose worker dies: the first death may be accidental."""


class Devices:
    """Runs jobs in ``workers`` processes, one on each device.

    Args:
        workers: number of processes; with GPUs, at most the visible ones.
        device: ``cpu`` uses no GPU even if there are some.
        address: not used.

    Raises:
        UsageError: a single GPU is named, or there are fewer than ``workers``.
    """

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
    """The result of a job; None if its worker died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # a payload or value that cannot be pickled
        return Done(job.name, error=error, where=worker.where)


class _Worker:
    """A device and its worker process, which is started for the first job."""

    def __init__(self, index: int, workers: int, gpus: Sequence[str]) -> None:
        self._gpu = gpus[index] if gpus else None
        self._threads = max(1, _cores() // workers)
        self.where = f"GPU {self._gpu}" if gpus else f"worker {index}"
        self._pool: ProcessPoolExecutor | None = None
        self._lifeline: tuple[Connection, Connection] | None = None
        """The worker's end and ours (:func:`_hold`)."""

    def begin(self, function: Callable[[Any], Any], job: Job) -> Future[Done]:
        """Start a job, in a new process if none is running."""
        with safe_path():
            if self._pool is None:
                context = get_context("spawn")  # CUDA and threads do not survive a fork
                self._lifeline = context.Pipe(duplex=False)
                arguments = (self._lifeline[0], self._gpu, self._threads)
                self._pool = ProcessPoolExecutor(1, context, _set_up, arguments)
            return self._pool.submit(work, function, job, self.where)

    def rest(self) -> None:
        """End the process after a job on a GPU."""
        if self._gpu is not None:
            self.end()

    def end(self) -> None:
        """Kill the process."""
        if self._pool is not None and self._lifeline is not None:
            for connection in self._lifeline:
                connection.close()
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = self._lifeline = None


def _set_up(far: Connection, gpu: str | None, threads: int) -> None:
    """In the worker, before anything is imported: set up its lifeline, device and share of the cores."""
    _hold(far)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and ends its workers
    warnings.simplefilter("ignore", PluginWarning)  # the parent has warned of the same plugins
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    elif "OMP_NUM_THREADS" not in os.environ:
        os.environ["OMP_NUM_THREADS"] = str(threads)
        if (torch := sys.modules.get("torch")) is not None:  # imported by the parent's script
            torch.set_num_threads(threads)


def _gpus(workers: int, device: str | None) -> list[str]:
    """The GPUs to use, as named in CUDA_VISIBLE_DEVICES; empty: CPU."""
    if device is not None and device.partition(":")[0] != "cuda":
        return []
    if device is not None and ":" in device:
        raise UsageError(
            f"device {device!r} names one GPU, but {workers} workers were requested; give cuda or no device"
        )
    import torch  # counts them without taking one

    count = torch.cuda.device_count()
    if count == 0:
        return []
    if workers > count:
        raise UsageError(f"{workers} devices requested, but {count} are visible; request fewer, or use --device cpu")
    named = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return (named or [str(index) for index in range(count)])[:workers]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _died(job: Job) -> DareError:
    return DareError(
        f"{job.name}: its worker process died {TRIES} times without an error; common causes are running out of system"
        " memory, a crash in native code, or a script without 'if __name__ == \"__main__\":' around its call"
    )


def _hold(far: Connection) -> None:
    """In the worker: end this process at once when the parent closes its end of the pipe, as SIGKILL does too. (Linux's
    PDEATHSIG follows the parent's *thread* instead.)"""

    def wait() -> None:
        far.poll(None)  # nothing is ever sent: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
