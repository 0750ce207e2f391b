"""One run: start two processes, send the texts, watch the clock, the memory and the output, end everything."""

from __future__ import annotations

import json
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
from dare_bench.sandbox.command import ENVIRONMENT, command, other_user
from dare_bench.sandbox.enter import MOST_FILES
from dare_bench.sandbox.processes import children, files_over, memory_over
from dare_bench.sandbox.verdict import Level, Limits, Status, Verdict

_START_SECONDS = 30.0  # a busy machine starts slowly; the clock of the code starts after that
_POLL_SECONDS = 0.05  # between checks of memory
_MIN_MEMORY_MB = 64
_CPU_EXITS = (128 + 24,)  # SIGXCPU
_KILLED = 128 + 9
_READY = b"ready\n"
_OUTCOMES: dict[str, Status] = {"passed": "passed", "failed": "failed"}
_PIECE = 1 << 16


def checked(limits: Limits) -> Limits:
    if not 0 < limits.seconds < float("inf"):
        raise UsageError(f"timeout={limits.seconds} is not valid: it must be a positive number of seconds")
    if limits.memory_mb < _MIN_MEMORY_MB:
        raise UsageError(f"memory_mb={limits.memory_mb} is too small: Python needs at least {_MIN_MEMORY_MB}")
    return limits


class SandboxRun:
    """One solution against its tests; ``execute`` once. ``stop`` ends it from another thread. Two sandboxes that share
    only a socket and the pipe for output: one runs the solution, the other the tests (worker.py), with a channel to
    us."""

    def __init__(self, level: Level, solution: str, tests: str, limits: Limits) -> None:
        self.level, self.limits = level, limits
        self.texts = json.dumps([solution, tests]).encode() + b"\n"
        self.tail, self.written = b"", 0
        self.started: float | None = None  # when the code began
        self.stopped = threading.Event()

    def stop(self) -> None:
        """Make a running ``execute`` end soon, with everything it started."""
        self.stopped.set()

    def execute(self) -> Verdict:
        with ExitStack() as stack:
            control, control_end = sockets(stack)
            asking, answering = sockets(stack)
            output, output_end = os.pipe()
            stack.callback(os.close, output)
            processes: list[subprocess.Popen[bytes]] = []
            try:
                processes.append(self._start(stack, answering.fileno(), -1, output_end))
                stack.callback(end, processes[0], gently=self.level == "none")
                processes.append(self._start(stack, asking.fileno(), control_end.fileno(), output_end))
                stack.callback(end, processes[1], gently=self.level == "none")
            except OSError as error:
                return Verdict("refused", self.level, f"the sandbox did not start: {error}", 0.0)
            finally:
                for channel in (control_end, asking, answering):
                    channel.close()
                os.close(output_end)
            os.set_blocking(output, False)
            status, reason = self._watch(processes, control, output)
            seconds = 0.0 if self.started is None else time.monotonic() - self.started
            self._read(output)
        text = self.tail.decode("utf-8", "replace")
        if text and reason and not text.endswith("\n"):
            text += "\n"
        return Verdict(status, self.level, text + reason, round(seconds, 4))

    def _start(self, stack: ExitStack, channel: int, control: int, output: int) -> subprocess.Popen[bytes]:
        """The process of the solution, or of the tests if there is a ``control``."""
        filter_fd, filter_end = os.pipe()
        with os.fdopen(filter_end, "wb") as file:  # smaller than a pipe's buffer
            file.write(calls.program())
        stack.callback(os.close, filter_fd)
        folder, environment, user = "/", ENVIRONMENT, 0
        if self.level == "none":
            folder = tempfile.mkdtemp(prefix="dare-bench-run-")
            stack.callback(remove, folder)
            if user := other_user():
                os.chown(folder, user, user)
            environment = {**ENVIRONMENT, "HOME": folder, "TMPDIR": folder}
        return subprocess.Popen(
            command(self.level, channel, filter_fd, self.limits, user, control),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            cwd=folder,
            pass_fds=[number for number in (channel, control, filter_fd) if number >= 0],
            start_new_session=True,  # Ctrl-C is for us
        )

    def _watch(
        self, processes: list[subprocess.Popen[bytes]], control: socket.socket, output: int
    ) -> tuple[Status, str]:
        """Wait for a verdict: the report of the tests' process, an exceeded limit, or an end without a report."""
        deadline, next_check, report = time.monotonic() + _START_SECONDS, 0.0, b""
        with selectors.DefaultSelector() as selector:
            selector.register(control, selectors.EVENT_READ)
            selector.register(output, selectors.EVENT_READ)
            while True:
                now = time.monotonic()
                if self.stopped.is_set():
                    return "crashed", "stopped"
                if now >= deadline and self.started is None:
                    return "refused", f"the sandbox did not start within {_START_SECONDS:g} s"
                if now >= deadline:
                    return "timeout", f"timeout after {self.limits.seconds:g} s"
                if now >= next_check:
                    next_check = now + _POLL_SECONDS
                    if self.started is not None and (over := self._over(processes)):
                        return "crashed", over
                ready = [key.fileobj for key, _ in selector.select(min(deadline, next_check) - now)]
                if output in ready and not self._read(output):
                    selector.unregister(output)
                if self.written > self.limits.output_bytes:
                    return "crashed", f"more than {self.limits.output_bytes} bytes of output"
                if control not in ready:
                    continue
                report = (report + (piece := control.recv(_PIECE)))[:_PIECE]
                if self.started is None and report == _READY:
                    self.started, report = time.monotonic(), b""
                    deadline = self.started + self.limits.seconds
                    threading.Thread(target=send_texts, args=(control, self.texts), daemon=True).start()
                elif not piece:
                    return self._ended(processes, report.decode("utf-8", "replace"))

    def _over(self, processes: list[subprocess.Popen[bytes]]) -> str:
        """The limit that the processes have passed together, which the kernel does not hold; empty if none."""
        if any(memory_over(process.pid, self.limits.memory_mb) for process in processes):
            return f"its processes together passed the limit of {self.limits.memory_mb} MB"
        if self.level == "bubblewrap" and any(files_over(p.pid, MOST_FILES) for p in processes):
            return f"its processes together passed the limit of {MOST_FILES} files"
        return ""

    def _ended(self, processes: list[subprocess.Popen[bytes]], report: str) -> tuple[Status, str]:
        """The process of the tests has ended: with a report, or because that of the solution has ended, or it was
        killed."""
        outcome, _, reason = report.partition("\n")
        if outcome in _OUTCOMES:
            return _OUTCOMES[outcome], reason
        process = processes[0] if outcome == "closed" else processes[1]
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
        return "crashed", f"the code ended with exit status {code}{by}, before the tests did"

    def _read(self, output: int) -> bool:
        """Read the available output, up to the limit, and keep its end. False: its last writer has ended."""
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


def sockets(stack: ExitStack) -> tuple[socket.socket, socket.socket]:
    pair = socket.socketpair()
    for end in pair:
        stack.callback(end.close)
    return pair


def send_texts(control: socket.socket, texts: bytes) -> None:
    """Send the texts, however slowly they are read; the end of the other process is detected elsewhere."""
    with suppress(OSError):
        control.sendall(texts)


def end(process: subprocess.Popen[bytes], gently: bool) -> None:
    """Kill everything and wait for it. The outermost process has one child, the first of its pid namespace, with which
    the kernel ends the whole namespace. ``gently``: there is none, and the outermost process kills the others."""
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
    """Delete a run's folder even if the code removed permissions."""
    for path, folders, _ in os.walk(folder):
        for name in folders:
            with suppress(OSError):
                Path(path, name).chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)
