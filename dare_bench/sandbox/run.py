"""One run: start a worker, hand it the texts one by one, watch the clock, the memory and the output, end everything."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from dare_bench.errors import UsageError
from dare_bench.sandbox import filter as calls
from dare_bench.sandbox.channel import Channel, Closed
from dare_bench.sandbox.command import ENVIRONMENT, command, other_user, source
from dare_bench.sandbox.processes import children, memory_over
from dare_bench.sandbox.verdict import MEMORY_MB, InstallHint, Level, Limits, Status, Verdict

_START_SECONDS = 30.0  # a busy machine starts slowly; the clock of the code runs only once it is there
_LOOK_SECONDS = 0.05  # between looks at memory
_MIN_MEMORY_MB = 64
_CPU_EXITS = (128 + 24,)  # SIGXCPU
_KILLED = 128 + 9


def run_tests(
    solution: str, tests: str, timeout: float = 10.0, *, memory_mb: int = MEMORY_MB, unsafe: bool = False
) -> Verdict:
    """Run ``solution``, then ``tests`` in its names, isolated.

    Args:
        solution: Python source that a model wrote.
        tests: Python source; it passes by running to its end.
        timeout: seconds of wall time, the start of the sandbox not counted.
        memory_mb: address space of each process, and memory of all together.
        unsafe: where no isolation works, run with limits and the caller's own rights instead of refusing.

    Raises:
        UsageError: a timeout that is not positive, or less memory than Python starts with.
    """
    from dare_bench.sandbox.levels import isolation, why_none

    limits = checked(Limits(seconds=timeout, memory_mb=memory_mb))
    level = isolation()
    if level == "none" and not unsafe:
        return Verdict("refused", "none", f"no isolation works here ({why_none()}); {InstallHint}", 0.0)
    return run_at(level, solution, tests, limits)


def run_at(level: Level, solution: str, tests: str, limits: Limits) -> Verdict:
    """The same at a given level. A sandbox that does not start is started once more before it counts as refused."""
    verdict = Run(level, solution, tests, limits).execute()
    return Run(level, solution, tests, limits).execute() if verdict.status == "refused" else verdict


def checked(limits: Limits) -> Limits:
    if not 0 < limits.seconds < float("inf"):
        raise UsageError(f"timeout {limits.seconds} s cannot be; give a positive number of seconds")
    if limits.memory_mb < _MIN_MEMORY_MB:
        raise UsageError(f"memory_mb {limits.memory_mb} is too little; Python needs {_MIN_MEMORY_MB} or more")
    return limits


class Run:
    """One solution against its tests; ``execute`` once. ``stop`` ends it from another thread."""

    def __init__(self, level: Level, solution: str, tests: str, limits: Limits) -> None:
        self.level, self.limits = level, limits
        checks = source("checks") + "\ncheck(pristine, current, modules, solution, standard)\n"
        self.texts = [solution, checks, tests, checks]
        self.tail, self.written = b"", 0
        self.started: float | None = None  # when the code began
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Make a running ``execute`` end soon, with everything it started."""
        self.stopped.set()

    def execute(self) -> Verdict:
        with ExitStack() as stack:
            ours, theirs = socket.socketpair()
            output, output_end = os.pipe()
            stack.callback(ours.close)
            stack.callback(os.close, output)
            try:
                process = self._start(stack, theirs, output_end)
            except OSError as error:
                return Verdict("refused", self.level, f"the sandbox did not start: {error}", 0.0)
            finally:
                theirs.close()
                os.close(output_end)
            try:
                os.set_blocking(output, False)
                status, why = self._watch(process, Channel(ours, self.texts), output)
                seconds = 0.0 if self.started is None else time.monotonic() - self.started
            finally:
                end(process, gently=self.level == "none")
            self._read(output)
        return Verdict(status, self.level, self._tail(why), round(seconds, 4))

    def _start(self, stack: ExitStack, theirs: socket.socket, output: int) -> subprocess.Popen[bytes]:
        filter_fd, filter_end = os.pipe()
        with os.fdopen(filter_end, "wb") as file:  # smaller than a pipe's buffer
            file.write(calls.program())
        folder, environment, user = "/", ENVIRONMENT, 0
        if self.level == "none":
            folder = tempfile.mkdtemp(prefix="dare-bench-run-")
            stack.callback(remove, folder)
            if user := other_user():
                os.chown(folder, user, user)
            environment = {**ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
        words = command(self.level, theirs.fileno(), filter_fd, self.limits, user)
        try:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                cwd=folder,
                pass_fds=(theirs.fileno(), filter_fd),
                start_new_session=True,  # Ctrl-C is for us
            )
        finally:
            os.close(filter_fd)

    def _watch(self, process: subprocess.Popen[bytes], channel: Channel, output: int) -> tuple[Status, str]:
        """Until there is a verdict: the last proof, an exception, a limit passed, or an end without proof."""
        deadline, next_look = time.monotonic() + _START_SECONDS, 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(channel.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, "channel")
            selector.register(output, selectors.EVENT_READ, "output")
            while True:
                now = time.monotonic()
                if self.stopped.is_set():
                    return "crashed", "stopped"
                if now >= deadline:
                    return self._late()
                if now >= next_look:
                    next_look = now + _LOOK_SECONDS
                    if self.started is not None and memory_over(process.pid, self.limits.memory_mb):
                        return "crashed", f"its processes together passed the limit of {self.limits.memory_mb} MB"
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.waiting else 0)
                selector.modify(channel.socket, wanted, "channel")
                for key, events in selector.select(min(deadline, next_look) - now):
                    if key.data == "output":
                        if not self._read(output):
                            selector.unregister(output)
                        if self.written > self.limits.output_bytes:
                            return "crashed", f"more than {self.limits.output_bytes} bytes of output"
                        continue
                    try:
                        done = channel.turn(events)
                    except Closed:
                        return self._ended(process)
                    if done is not None:
                        return done
                    if self.started is None and channel.ready:
                        self.started = time.monotonic()
                        deadline = self.started + self.limits.seconds

    def _late(self) -> tuple[Status, str]:
        if self.started is None:
            return "refused", f"the sandbox did not start within {_START_SECONDS:g} s"
        return "timeout", f"timeout after {self.limits.seconds:g} s"

    def _ended(self, process: subprocess.Popen[bytes]) -> tuple[Status, str]:
        """The worker closed its end: by its death, mostly."""
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)
        code = process.poll()
        if self.started is None:
            return "refused", f"the sandbox did not start (exit status {code})"
        used = time.monotonic() - self.started
        if code in _CPU_EXITS or (code == _KILLED and used >= self.limits.cpu_seconds):
            return "timeout", f"more than {self.limits.cpu_seconds} s of CPU time"
        if code is None:
            return "crashed", "the code closed the channel of the runner"
        by = f" (signal {code - 128})" if code > 128 else ""
        return "crashed", f"the code ended with exit status {code}{by}, without proof of a pass"

    def _read(self, output: int) -> bool:
        """Take what there is, up to the limit, and keep its end. False: nobody can write any more."""
        while self.written <= self.limits.output_bytes:
            try:
                piece = os.read(output, 1 << 16)
            except BlockingIOError:
                return True
            if not piece:
                return False
            self.written += len(piece)
            self.tail = (self.tail + piece)[-self.limits.tail_bytes :]
        return True

    def _tail(self, why: str) -> str:
        text = self.tail.decode("utf-8", "replace")
        if not why:
            return text
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{why}"


def end(process: subprocess.Popen[bytes], gently: bool) -> None:
    """Kill everything and wait for it.

    The outermost process has one child, the first of its pid namespace: with that the kernel ends the whole namespace,
    and the outermost reaps it and goes. Killed itself it would leave a zombie to an init that may not reap.
    ``gently``: there is no namespace, and the outermost process does the killing.
    """
    inside = [] if gently else children(process.pid)
    if gently and process.poll() is None:
        process.terminate()
    for pid in inside:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    if gently or inside:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5.0)
    process.kill()
    process.wait()


def remove(folder: str) -> None:
    """Delete a run's folder even where the code took rights away."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            with suppress(OSError):
                Path(path, name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
