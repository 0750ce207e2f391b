"""Functions that may never come back, or may be made to do harm, run in a process that can be killed and sandboxed.

A signal handler cannot stop a scorer that is inside one long C call (``9**9**9``), and a thread cannot be stopped at
all. So a forked worker does the work: it inherits the functions as they are, whatever objects they hold, and only
arguments and results cross a pipe. When a call takes too long the worker is killed with all it started, and the next
call gets a new one. Forking needs a Unix system.

What comes back is JSON, so that nothing a worker sends is executed here; tuples come back as lists.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dare_bench.errors import DareError
from dare_bench.reading import check_nesting
from dare_bench.sandbox.forked import Room, enclose
from dare_bench.sandbox.processes import children

HEADROOM = 4 << 30
"""Bytes of address space that a worker may take beyond what it has when it is forked."""
_START = 20.0  # seconds for a fork to report; it takes milliseconds unless it inherited a lock that nobody will release
_STARTS = 3
_ORPHAN = 2.0  # seconds between looks at whether the parent is still there
_MOST_BYTES = 2 << 30  # of one result

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


class WorkerProcess:
    """Calls ``functions`` by name in a worker process, each call within ``seconds``.

    The worker is forked at the first call, so that it sees what the functions see by then, and keeps what it learns
    (caches, imports) from call to call. Calls from several threads wait for one another. ``memory`` is the address
    space in bytes that the worker may take beyond what it inherits (Linux; elsewhere it is not limited). ``sandbox``:
    the worker runs in a sandbox (:mod:`dare_bench.sandbox.forked`) with this room; None: it has our rights.
    """

    def __init__(
        self,
        functions: Functions,
        seconds: float,
        *,
        memory: int = HEADROOM,
        sandbox: Room | None = None,
    ) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds is {seconds}; a limit is above 0")
        self.seconds = seconds
        self._functions, self._memory, self._sandbox = dict(functions), memory, sandbox
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
            worker = _Worker(self._functions, self._memory, self._sandbox)
            if worker.reports():
                self._worker = worker
                return worker
            worker.kill()
        raise DareError(f"a scoring process could not be started: {_STARTS} attempts, {_START:g} s at most for each")

    def _drop(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


class _Worker:
    """One forked process, seen from its parent."""

    def __init__(self, functions: Functions, memory: int, sandbox: Room | None) -> None:
        if not hasattr(os, "fork"):
            raise DareError("this system cannot fork, which scoring with a time limit needs; use Linux, macOS or WSL")
        import resource  # noqa: F401  (loaded before the fork: another thread may hold the import lock during it)

        self._pipe, theirs = Pipe()
        with warnings.catch_warnings():
            # Python warns that a fork with threads may deadlock; that is what reports() and the limits are for.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(functions, theirs, memory, sandbox)  # does not return
        theirs.close()
        self.pid, self._parent = pid, os.getpid()
        self._end = weakref.finalize(self, _kill, pid, self._pipe, os.getpid(), sandbox is not None)

    def reports(self) -> bool:
        """Has the child come up?"""
        try:
            return _receive(self._pipe.fileno(), _START) == b"ready"
        except (EOFError, OSError, ItemTimeout):
            return False

    def alive(self) -> bool:
        """Is it ours and there? A worker made before this process was forked is another's. Nothing is there to read
        between two calls but the end of the pipe."""
        return self._end.alive and self._parent == os.getpid() and not self._pipe.poll()

    def call(self, name: str, args: tuple[Any, ...], seconds: float) -> Any:
        try:
            self._pipe.send((name, args, seconds))
            raw = _receive(self._pipe.fileno(), seconds)
        except (EOFError, OSError) as error:
            raise ItemError(f"the scoring process died ({self._last_words()})", died=True) from error
        return _result(raw)

    def _last_words(self) -> str:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._end.detach()
                    self._pipe.close()
                    _kill_group(self.pid)
                    code = os.waitstatus_to_exitcode(status)
                    code = 128 - code if code < 0 else code  # a sandbox tells of a signal as a shell does
                    return signal.Signals(code - 128).name if code > 128 else f"exit status {code}"
            time.sleep(0.005)
        return "its end of the pipe is closed"

    def kill(self) -> None:
        self._end()


def _receive(descriptor: int, seconds: float) -> bytes:
    """A message of :func:`_send`, whole within ``seconds``: a worker may stop in the middle of one.

    Raises:
        ItemTimeout: the time is over. EOFError: the other end is closed. OSError: it is too long, or cannot be read.
    """
    deadline = time.monotonic() + seconds
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)

    def exactly(count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                raise ItemTimeout(f"no result within {seconds:g} s; the call was ended")
            if not (piece := os.read(descriptor, min(count - len(found), 1 << 20))):
                raise EOFError
            found += piece
        return bytes(found)

    length = int.from_bytes(exactly(8), "big")
    if length > _MOST_BYTES:
        raise OSError(f"a message of {length} bytes")
    return exactly(length)


def _send(descriptor: int, message: bytes) -> None:
    rest = memoryview(len(message).to_bytes(8, "big") + message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _kill(pid: int, pipe: Connection, parent: int, sandboxed: bool) -> None:
    if os.getpid() != parent:
        return  # a fork of the parent: not its child
    pipe.close()
    # A sandbox ends with its first process; the worker outside reaps that and goes by itself.
    inside = children(pid) if sandboxed else []
    for process in inside:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if not (inside and _reaped(pid, 2.0)):
        _kill_group(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # for one that had no group of its own yet
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _reaped(pid: int, seconds: float) -> bool:
    """Has our child ended within ``seconds``? It leaves no zombie then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return True
        except ChildProcessError:
            return True
        time.sleep(0.005)
    return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _child(functions: Functions, pipe: Connection, memory: int, sandbox: Room | None) -> None:
    """The worker's whole life. It leaves by ``os._exit``: atexit handlers and open files are the parent's."""
    try:
        _detach(pipe.fileno())
        _limit_memory(memory)
        if sandbox is not None:
            enclose(sandbox)
        parent = os.getppid()
        _send(pipe.fileno(), b"ready")
        while True:
            while not pipe.poll(_ORPHAN):
                if os.getppid() != parent:
                    os._exit(0)
            name, args, seconds = pipe.recv()
            _limit_time(seconds)
            _send(pipe.fileno(), _outcome(functions, name, args))
    except BaseException:
        os._exit(1)


def _outcome(functions: Functions, name: str, args: tuple[Any, ...]) -> bytes:
    """JSON of [value], or of [kind, line, traceback] of what was raised; a value that cannot be sent is an error."""
    try:
        return json.dumps([functions[name](*args)], default=_unpacked).encode()
    except BaseException as error:  # a scorer's SystemExit is its error too
        kind, first = type(error).__name__, str(error).strip().split("\n")[0][:1000]
        line = first if isinstance(error, DareError) else f"{kind}: {first}" if first else kind
        return json.dumps([kind, line, traceback.format_exc(limit=-20)]).encode()


def _unpacked(value: Any) -> Any:
    """numpy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} cannot be sent as JSON")


def _result(raw: bytes) -> Any:
    """What :func:`_outcome` has sent; raises ItemError."""
    try:
        found = json.loads(raw)
        check_nesting(found)
        if isinstance(found, list) and len(found) == 1:
            return found[0]
        kind, line, trace = map(str, found)
    except (ValueError, TypeError, RecursionError) as error:
        raise ItemError(f"the scoring process sent what is no result ({error})", died=True) from error
    failed = ItemError(line, kind=kind)
    failed.add_note(trace)
    raise failed


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
