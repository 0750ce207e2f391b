"""Functions that may never come back, run in a process that can be killed.

A signal handler cannot stop a scorer that is inside one long C call (``9**9**9``), and a thread cannot be stopped at
all. So a forked worker does the work: it inherits the functions as they are, whatever objects they hold, and only
arguments and results cross a pipe. When a call takes too long the worker is killed with all it started, and the next
call gets a new one. Forking needs a Unix system.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import logging
import math
import os
import signal
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dare_bench.errors import DareError

HEADROOM = 4 << 30
"""Bytes of address space that a worker may take beyond what it has when it is forked."""
_START = 20.0  # seconds for a fork to report; it takes milliseconds unless it inherited a lock that nobody will release
_STARTS = 3
_ORPHAN = 2.0  # seconds between looks at whether the parent is still there

Functions = Mapping[str, Callable[..., Any]]


class ItemTimeout(DareError):
    """A call took longer than its limit; what it had started is gone."""


class ItemError(DareError):
    """A call raised, or its worker died (out of memory, a crash in C code). The message is the one line of it.

    ``died``: the worker did not survive; otherwise ``kind`` names the exception's class.
    """

    def __init__(self, message: str, *, kind: str = "", died: bool = False) -> None:
        super().__init__(message)
        self.kind, self.died = kind, died


class Guard:
    """Calls ``functions`` by name in a worker process, each call within ``seconds``.

    The worker is forked at the first call, so that it sees what the functions see by then, and keeps what it learns
    (caches, imports) from call to call. Calls from several threads wait for one another. ``memory`` is the address
    space in bytes that the worker may take beyond what it inherits (Linux; elsewhere it is not limited).

    What comes back is unpickled: guard functions that may be slow, not ones that may be malicious.
    """

    def __init__(self, functions: Functions, seconds: float, *, memory: int = HEADROOM) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds is {seconds}; a limit is above 0")
        self.seconds = seconds
        self._functions, self._memory = dict(functions), memory
        self._worker: _Worker | None = None
        self._lock = threading.Lock()

    def call(self, name: str, *args: Any, seconds: float | None = None) -> Any:
        """``functions[name](*args)``; ``seconds`` replaces the guard's limit for this call.

        Raises:
            ItemTimeout: the limit has passed.
            ItemError: the function raised, or the worker died of it.
            DareError: no worker can be started on this system.
        """
        limit = self.seconds if seconds is None else seconds
        with self._lock:
            worker = self._ready()
            try:
                return worker.call(name, args, limit)
            except ItemTimeout:
                self._drop()
                raise
            except ItemError as error:
                if error.died or error.kind in ("MemoryError", "RecursionError"):
                    self._drop()  # what is left of it cannot be trusted
                raise
            except BaseException:  # Ctrl-C, or arguments that cannot be sent: an answer may be on its way to nobody
                self._drop()
                raise

    def close(self) -> None:
        """End the worker. A later call forks a new one."""
        with self._lock:
            self._drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> _Worker:
        if self._worker is not None and self._worker.alive():
            return self._worker
        self._drop()
        for _ in range(_STARTS):
            worker = _Worker(self._functions, self._memory)
            if worker.reports():
                self._worker = worker
                return worker
            worker.kill()
        raise DareError(f"a scoring process could not be started: {_STARTS} forks said nothing for {_START:g} s each")

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """One forked process, seen from its parent."""

    def __init__(self, functions: Functions, memory: int) -> None:
        if not hasattr(os, "fork"):
            raise DareError("this system cannot fork, which scoring with a time limit needs; use Linux, macOS or WSL")
        import resource  # noqa: F401  (loaded before the fork: another thread may hold the import lock during it)

        self._pipe, theirs = Pipe()
        with warnings.catch_warnings():
            # Python warns that a fork with threads may deadlock; that is what reports() and the limits are for.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(functions, theirs, memory)  # does not return
        theirs.close()
        self.pid = pid
        self._end = weakref.finalize(self, _kill, pid, self._pipe, os.getpid())

    def reports(self) -> bool:
        """Has the child come up?"""
        try:
            return self._pipe.poll(_START) and self._pipe.recv() == "ready"
        except (EOFError, OSError):
            return False

    def alive(self) -> bool:
        """Nothing to read between two calls: what is there then is the end of the pipe."""
        return self._end.alive and not self._pipe.poll()

    def call(self, name: str, args: tuple[Any, ...], seconds: float) -> Any:
        try:
            self._pipe.send((name, args, seconds))
            if not self._pipe.poll(seconds):
                raise ItemTimeout(f"no result within {seconds:g} s; the call was ended")
            fine, value = self._pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise ItemError(f"the scoring process died ({self._last_words()})", died=True) from error
        if fine:
            return value
        kind, line = value
        raise ItemError(line, kind=kind)

    def _last_words(self) -> str:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._end.detach()
                    self._pipe.close()
                    _kill_group(self.pid)
                    if os.WIFSIGNALED(status):
                        return signal.Signals(os.WTERMSIG(status)).name
                    return f"exit status {os.WEXITSTATUS(status)}"
            time.sleep(0.005)
        return "its end of the pipe is closed"

    def kill(self) -> None:
        self._end()


def _kill(pid: int, pipe: Connection, parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork of the parent: not its child
    pipe.close()
    _kill_group(pid)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)  # for one that had no group of its own yet
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _child(functions: Functions, pipe: Connection, memory: int) -> None:
    """The worker's whole life. It leaves by ``os._exit``: atexit handlers and open files are the parent's."""
    try:
        parent = os.getppid()
        _detach(pipe.fileno())
        _limit_memory(memory)
        pipe.send("ready")
        while True:
            while not pipe.poll(_ORPHAN):
                if os.getppid() != parent:
                    os._exit(0)
            name, args, seconds = pipe.recv()
            _limit_time(seconds)
            pipe.send_bytes(_outcome(functions, name, args))
    except BaseException:
        os._exit(1)


def _outcome(functions: Functions, name: str, args: tuple[Any, ...]) -> memoryview:
    """(True, value) or (False, (kind, line)), pickled here: a value that cannot be sent is this call's error."""
    try:
        return ForkingPickler.dumps((True, functions[name](*args)))
    except BaseException as error:  # a scorer's SystemExit is its error too
        kind, first = type(error).__name__, str(error).strip().split("\n")[0][:300]
        return ForkingPickler.dumps((False, (kind, f"{kind}: {first}" if first else kind)))


def _detach(keep: int) -> None:
    """Away from the parent: its terminal, its files and locks, its signal handlers, its logs."""
    import resource

    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    faulthandler.disable()
    logging.disable(logging.CRITICAL)
    sys.setprofile(None)
    sys.settrace(None)
    gc.freeze()  # what was inherited is never collected, so its pages stay shared and its finalizers do not run
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    # An inherited descriptor would keep the parent's file locks and other pipes open.
    os.closerange(3, keep)
    os.closerange(keep + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))


def _limit_memory(extra: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        bound = int(pages.read_text().split()[0]) * resource.getpagesize() + extra
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        if hard == resource.RLIM_INFINITY or bound < hard:
            resource.setrlimit(resource.RLIMIT_AS, (bound, hard))


def _limit_time(seconds: float) -> None:
    """An end for a worker whose parent was killed while it was busy: processor time, well above the call's limit."""
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    bound = math.ceil(used.ru_utime + used.ru_stime + 4 * seconds) + 5
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if hard == resource.RLIM_INFINITY or bound < hard:
        resource.setrlimit(resource.RLIMIT_CPU, (bound, hard))
