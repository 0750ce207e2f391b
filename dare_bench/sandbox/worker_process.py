"""Runs functions that may not terminate or may be attacked, in a forked process that can be killed and sandboxed.

The worker inherits the functions with the objects they hold; only arguments and results cross a pipe, and results are
JSON, so that nothing a worker sends is executed here (tuples come back as lists). Forking needs a Unix system.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import json
import logging
import math
import os
import resource
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
from typing import Any

from dare_bench.errors import DareError
from dare_bench.reading import check_nesting
from dare_bench.sandbox.forked import SandboxView, Tree, enclose
from dare_bench.sandbox.processes import children

HEADROOM = 4 << 30
"""Bytes of address space that a worker may take beyond what it has when it is forked (Linux; elsewhere unlimited)."""
_START = 20.0  # seconds for a fork to report; it takes milliseconds unless it inherited a lock that is never released
_STARTS = 3
_ORPHAN = 2.0  # seconds between checks that the parent still exists
_HIDDEN = ("/proc/1", "/etc/passwd")
_MAX_BYTES = 2 << 30  # of one result

Functions = Mapping[str, Callable[..., Any]]


class ItemTimeout(DareError):
    """A call took longer than its limit; its worker has been killed."""


class ItemError(DareError):
    """A call raised, or its worker died (out of memory, a crash in C code). The message is one line.

    ``died``: the worker did not survive; otherwise ``kind`` names the exception's class.
    """

    def __init__(self, message: str, *, kind: str = "", died: bool = False) -> None:
        super().__init__(message)
        self.kind, self.died = kind, died


class WorkerProcess(contextlib.AbstractContextManager["WorkerProcess"]):
    """Calls ``functions`` by name in a worker process, each call within ``seconds``; threads wait for one another.

    The worker is forked at the first call, so that it sees the state of that moment, and keeps caches and imports. With
    a ``sandbox`` it has that view, else our rights.
    """

    def __init__(self, functions: Functions, seconds: float, *, sandbox: SandboxView | None = None) -> None:
        if seconds <= 0:
            raise ValueError(f"seconds is {seconds}; a limit is above 0")
        self.seconds = seconds
        self._functions, self._sandbox = dict(functions), sandbox
        self._lock = threading.Lock()
        self._pipe: Connection
        self._pid = self._parent = 0  # of the worker, and of the process that forked it; 0: there is none
        self._end: weakref.finalize[..., WorkerProcess] | None = None

    def call(self, name: str, *args: Any, seconds: float | None = None) -> Any:
        """``functions[name](*args)``; ``seconds`` replaces the limit for this call; raises ItemTimeout, ItemError or
        DareError."""
        limit = self.seconds if seconds is None else seconds
        with self._lock:
            # The worker must be a child of this process, not of one that this was forked from; between two calls
            # nothing but the end of the pipe can be read.
            if self._parent != os.getpid() or self._pipe.poll():
                self._start()
            try:
                self._pipe.send((name, args, limit))
                return _result(_receive(self._pipe.fileno(), limit))
            except (EOFError, OSError) as error:
                cause = self._cause()
                self._drop()
                raise ItemError(f"the scoring process died ({cause})", died=True) from error
            except ItemError as error:
                if error.died or error.kind in ("MemoryError", "RecursionError"):
                    self._drop()
                raise
            except BaseException:  # a timeout, Ctrl-C, arguments that cannot be sent: a result may be on its way
                self._drop()
                raise

    def close(self) -> None:
        """End the worker. A later call forks a new one."""
        with self._lock:
            self._drop()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        self._drop()
        reason = b""
        for _ in range(_STARTS):
            self._fork()
            with contextlib.suppress(EOFError, OSError, ItemTimeout):
                if (reason := _receive(self._pipe.fileno(), _START)) == b"ready":
                    return
            self._drop()
            if reason:
                break
        why = reason.decode("utf-8", "replace") or f"{_STARTS} attempts, {_START:g} s at most for each"
        raise DareError(f"a scoring process could not be started: {why}")

    def _fork(self) -> None:
        self._pipe, child_end = Pipe()
        sandbox = self._sandbox
        enclosure = (sandbox.tree(), sandbox.environment) if sandbox is not None else None
        with warnings.catch_warnings():
            # Python warns that a fork with threads may deadlock; _start() and the limits handle that.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            _child(self._functions, child_end, enclosure)  # does not return
        child_end.close()
        self._pid, self._parent = pid, os.getpid()
        self._end = weakref.finalize(self, _kill, pid, self._pipe, os.getpid(), sandbox is not None)

    def _drop(self) -> None:
        if self._end is not None:
            self._end()
        self._pid = self._parent = 0

    def _cause(self) -> str:
        """Why the worker died."""
        with contextlib.suppress(ChildProcessError):
            if (status := _wait(self._pid, 1.0)) is not None:
                if self._end is not None:
                    self._end.detach()  # it is reaped: another process may get its id
                self._pipe.close()
                _kill_group(self._pid)
                code = os.waitstatus_to_exitcode(status)
                code = 128 - code if code < 0 else code  # a sandbox reports a signal as a shell does
                return signal.Signals(code - 128).name if code > 128 else f"exit status {code}"
        return "its end of the pipe is closed"


@functools.cache
def why_not_enclosed() -> str | None:
    """The reason why a worker cannot be in a sandbox on this machine, in one line; None if it can. Tried once."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    try:
        with WorkerProcess(
            {"sees": lambda: any(map(os.path.exists, _HIDDEN))}, _START, sandbox=SandboxView()
        ) as worker:
            return "files of the machine are visible" if worker.call("sees") else None
    except (DareError, OSError) as error:
        return str(error)


def _receive(descriptor: int, seconds: float) -> bytes:
    """A complete message of :func:`_send` within ``seconds``: a worker may stop in the middle of one; raises
    ItemTimeout, EOFError or OSError."""
    deadline = time.monotonic() + seconds
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)

    def exactly(count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                raise ItemTimeout(f"no result within {seconds:g} s; the call was ended")
            if not (piece := os.read(descriptor, min(count - len(data), 1 << 20))):
                raise EOFError
            data += piece
        return bytes(data)

    length = int.from_bytes(exactly(8), "big")
    if length > _MAX_BYTES:
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
    # A sandbox ends with its first process; the worker outside reaps that and then exits.
    inside = children(pid) if sandboxed else []
    for process in inside:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        if inside and _wait(pid, 2.0) is not None:
            return
        _kill_group(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # for a process that had no separate group yet
        os.waitpid(pid, 0)


def _wait(pid: int, seconds: float) -> int | None:
    """The wait status of our child, which leaves no zombie; None if it does not end within ``seconds``. Raises
    ChildProcessError if it was reaped before."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    return None


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _child(functions: Functions, pipe: Connection, enclosure: tuple[Tree, Mapping[str, str]] | None) -> None:
    """The worker's main loop. It ends by ``os._exit``: atexit handlers and open files are the parent's."""
    try:
        _detach(pipe.fileno())
        _limit_memory()
        if enclosure is not None:
            try:
                enclose(*enclosure)
            except BaseException as error:
                _send(pipe.fileno(), f"{type(error).__name__}: {error}".encode("utf-8", "replace"))
                raise
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
    """JSON of [value], or of [type, line, traceback] of an exception; a value that cannot be sent is an error."""
    try:
        return json.dumps([functions[name](*args)], default=_to_python).encode()
    except BaseException as error:  # also a scorer's SystemExit
        kind, first = type(error).__name__, str(error).strip().split("\n")[0][:1000]
        line = first if isinstance(error, DareError) else f"{kind}: {first}" if first else kind
        return json.dumps([kind, line, traceback.format_exc(limit=-20)]).encode()


def _to_python(value: Any) -> Any:
    """numpy's numbers and arrays as Python's."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result of type {type(value).__name__} cannot be sent as JSON")


def _result(raw: bytes) -> Any:
    """The value of :func:`_outcome`; raises ItemError."""
    try:
        outcome = json.loads(raw)
        check_nesting(outcome)
        if isinstance(outcome, list) and len(outcome) == 1:
            return outcome[0]
        kind, line, trace = map(str, outcome)
    except (ValueError, TypeError, RecursionError) as error:
        raise ItemError(f"the scoring process sent something that is not a result ({error})", died=True) from error
    failed = ItemError(line, kind=kind)
    failed.add_note(trace)
    raise failed


def _detach(keep: int) -> None:
    """Detach from the parent's terminal, files and locks, signal handlers and logs."""
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
    gc.freeze()  # inherited objects are never collected, so their pages stay shared and no finalizer runs
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for file in _open_files() - {0, 1, 2, keep, null}:
        os.dup2(null, file, inheritable=False)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(n, mode, closefd=False) for n, mode in enumerate("rww"))


def _open_files() -> set[int]:
    """Numbers of open file descriptors. They are replaced, since an inherited one would keep the parent's locks and
    pipes open, and not closed: objects of the parent close their numbers when they are deallocated."""
    highest = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16)
    with contextlib.suppress(OSError):
        return {number for path in Path("/proc/self/fd").iterdir() if _is_open(number := int(path.name))}
    return {number for number in range(highest) if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pages = Path("/proc/self/statm")
    if pages.exists():
        _limit(resource.RLIMIT_AS, int(pages.read_text().split()[0]) * resource.getpagesize() + HEADROOM)


def _limit_time(seconds: float) -> None:
    """A limit of processor time, well above the call's, for a worker whose parent was killed while it was busy."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _limit(resource.RLIMIT_CPU, math.ceil(used.ru_utime + used.ru_stime + 4 * seconds) + 5)


def _limit(kind: int, bound: int) -> None:
    hard = resource.getrlimit(kind)[1]
    if hard == resource.RLIM_INFINITY or bound < hard:
        resource.setrlimit(kind, (bound, hard))
