"""One run, or many at once in background threads, and the isolation that works on this machine."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Final

from dare_bench.errors import UsageError
from dare_bench.sandbox.run import SandboxRun, checked
from dare_bench.sandbox.verdict import MEMORY_MB, InstallHint, Level, Limits, Verdict

_WORKERS = 4

_PROBE_SECONDS = 20.0
_PROBE: Final = """
import os, socket
with open("/tmp/probe", "w") as file:
    file.write("x")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError:
    offline = True
try:
    with open("/probe", "w"):
        writable = True
except OSError:
    writable = False
"""
_PROBE_TESTS: Final = """
assert offline and not writable
assert not os.path.exists("/etc/passwd") and not os.path.exists("/proc/1")
assert os.getpid() < 10 and len(os.environ) < 12
"""
_lock = threading.Lock()


def run_tests(
    solution: str, tests: str, timeout: float = 10.0, *, memory_mb: int = MEMORY_MB, unsafe: bool = False
) -> Verdict:
    """Run ``solution``, then ``tests`` in its names, isolated.

    Args:
        solution: Python source that a model wrote.
        tests: Python source; it passes by running to its end.
        timeout: seconds of wall time, without the start of the sandbox.
        memory_mb: address space of each process, and memory of all together.
        unsafe: if no isolation works, run with limits and the caller's rights instead of refusing.

    Raises:
        UsageError: a timeout that is not positive, or less memory than Python starts with.
    """
    with Pool(1, timeout=timeout, memory_mb=memory_mb, unsafe=unsafe) as pool:
        return pool.submit(solution, tests).result()


class Pool(AbstractContextManager["Pool"]):
    """Runs solutions against tests, ``workers`` at a time (4, or as many as there are CPUs if fewer).

    ``submit`` never waits. The same pair of texts is run once: later calls get the same future. ``close``, or the end
    of a ``with`` block, cancels what has not begun and kills what runs; without it a program ends after its runs.
    """

    def __init__(
        self, workers: int | None = None, *, timeout: float = 10.0, memory_mb: int = MEMORY_MB, unsafe: bool = False
    ) -> None:
        workers = min(_WORKERS, os.cpu_count() or 1) if workers is None else workers
        if workers < 1:
            raise UsageError(f"workers={workers} is not valid: it must be at least 1")
        self._limits, self._unsafe = checked(Limits(seconds=timeout, memory_mb=memory_mb)), unsafe
        self._threads = ThreadPoolExecutor(workers, "dare-bench-sandbox")
        self._futures: dict[tuple[str, str], Future[Verdict]] = {}
        self._lock = threading.Lock()
        self._running: set[SandboxRun] = set()
        self._closed = False

    def submit(self, solution: str, tests: str) -> Future[Verdict]:
        """Start a run, or join one of the same two texts. Raises UsageError after ``close``."""
        with self._lock:
            if self._closed:
                raise UsageError("the pool is closed; create a new one")
            if (solution, tests) not in self._futures:
                self._futures[solution, tests] = self._threads.submit(self._run, solution, tests)
            return self._futures[solution, tests]

    def run(self, pairs: Iterable[tuple[str, str]]) -> list[Verdict]:
        """The verdicts of all pairs (solution, tests), in their order."""
        return [future.result() for future in [self.submit(*pair) for pair in pairs]]

    def close(self) -> None:
        """Cancel what waits, kill what runs, and wait for the threads. A second call does nothing."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for run in running:
            run.stop()
        self._threads.shutdown(cancel_futures=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, solution: str, tests: str) -> Verdict:
        """The verdict; a sandbox that does not start is started once more before it counts as refused."""
        level = isolation()
        if level == "none" and not self._unsafe:
            return Verdict("refused", "none", f"no isolation works here ({why_none()}); {InstallHint}", 0.0)
        for last in (False, True):
            run = SandboxRun(level, solution, tests, self._limits)
            with self._lock:
                self._running.add(run)
                if self._closed:
                    run.stop()
            try:
                verdict = run.execute()
            finally:
                with self._lock:
                    self._running.discard(run)
            if run.stopped.is_set():
                raise CancelledError("the pool was closed while this ran")
            if verdict.status != "refused" or last:
                break
        return verdict


def isolation() -> Level:
    """The strongest level that works on this machine; tried once in this process (about a tenth of a second)."""
    with _lock:  # other threads wait for the first
        return _probe()[0]


def why_none() -> str:
    """The reason why each level above :func:`isolation` 's does not work, in one line."""
    with _lock:
        return "; ".join(_probe()[1])


@functools.cache
def _probe() -> tuple[Level, list[str]]:
    """The level, and why those above it do not work; each is tried once, by a harmless program."""
    reasons: list[str] = []
    levels: tuple[Level, ...] = ("bubblewrap", "namespaces")
    for level in levels:
        if sys.platform != "linux":
            reason = f"needs Linux, this is {sys.platform}"
        elif level == "bubblewrap" and shutil.which("bwrap") is None:
            reason = "bwrap is not installed"
        else:
            verdict = SandboxRun(level, _PROBE, _PROBE_TESTS, Limits(seconds=_PROBE_SECONDS)).execute()
            if verdict.status == "passed":
                return level, reasons
            reason = " ".join(verdict.stdout_tail.split())
        reasons.append(f"{level}: {reason}")
    return "none", reasons
