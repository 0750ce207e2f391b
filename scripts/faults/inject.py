"""The faults. Each starts a command, injects the fault at a given moment, and checks how the command ends."""

from __future__ import annotations

import datetime
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.sandbox.processes import children
from faults.commands import Running, orphans, start
from faults.state import answers

STOP_LIMIT = 30.0
"""Seconds within which a command must end after a signal, on a machine with other load."""


@dataclass
class FaultOutcome:
    """Whether the fault came before the end of the command, the problems, and the seconds until the command ended."""

    in_time: bool
    problems: list[str] = field(default_factory=list)
    seconds: float | None = None


@dataclass
class Scene:
    """The command of a round, its folder, the moment of the fault, and the size of the undisturbed run."""

    arguments: Sequence[str]
    folder: Path
    share: float
    """The moment, as a share of the undisturbed run."""
    seconds: float
    """Duration of the undisturbed run."""
    bytes: int
    """Disk usage of the undisturbed run."""
    rng: random.Random
    prepare: Callable[[], None]
    """Writes the input files of the command."""
    after: int | None = None
    """The moment as a number of finished samples and checkpoints; None: by time."""

    def start(self, setup: Callable[[], None] = lambda: None, **options: Any) -> Running:
        return start(self.arguments, self.folder, setup, **options)

    def start_until_moment(self, setup: Callable[[], None] = lambda: None, **options: Any) -> Running:
        running = self.start(setup, **options)
        if self.after is None:
            running.process.join(max(0.0, running.started + self.share * self.seconds - time.monotonic()))
        else:
            while not running.ended and answers(self.folder) < self.after:
                time.sleep(0.002)
        return running


Fault = Callable[[Scene], FaultOutcome]


def kill(scene: Scene) -> FaultOutcome:
    """SIGKILL to the command; its worker processes must end."""
    running = scene.start_until_moment()
    running.send(signal.SIGKILL)
    code = running.wait()
    return FaultOutcome(code == -signal.SIGKILL, orphans())


def kill_worker(scene: Scene) -> FaultOutcome:
    """SIGKILL to a worker process; the command must repeat its work."""
    running = scene.start_until_moment()
    workers = _workers(running.pid)
    if workers:
        os.kill(scene.rng.choice(workers), signal.SIGKILL)
    code = running.wait()
    return FaultOutcome(bool(workers), orphans() + _problems(running, code, 0))


def _workers(pid: int) -> list[int]:
    """The worker processes of a command, without the resource tracker."""
    try:
        return [child for child in children(pid) if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def stop_by(number: signal.Signals) -> Fault:
    """A signal that stops the command, which must report it in one line and end within the limit."""

    def fault(scene: Scene) -> FaultOutcome:
        running = scene.start_until_moment()
        running.send(number)
        signaled = time.monotonic()
        code = running.wait()
        seconds = time.monotonic() - signaled
        if code == 0:
            return FaultOutcome(False, orphans())
        problems = orphans() + _problems(running, code, 128 + number, f"interrupted by {number.name.lower()}")
        if code == -number and not running.output():  # before the first line of the program
            problems = []
        if seconds > STOP_LIMIT:
            problems.append(f"took {seconds:.0f} s to end")
        return FaultOutcome(True, problems, seconds)

    return fault


def close_reader(stream: str) -> Fault:
    """The reader of stdout or stderr closes it; the command must continue to its end."""

    def fault(scene: Scene) -> FaultOutcome:
        reader, writer = os.pipe()
        running = scene.start_until_moment(streams=(writer, None) if stream == "stdout" else (None, writer))
        os.close(writer)
        in_time = not running.ended
        os.close(reader)
        code = running.wait()
        return FaultOutcome(in_time, orphans() + _problems(running, code, 0))

    return fault


def two_processes(scene: Scene) -> FaultOutcome:
    """The same command a second time while the first is running: the second must refuse, and not disturb the first."""
    first = scene.start_until_moment()
    while not first.ended and not any(scene.folder.rglob(".lock")):
        time.sleep(0.01)
    first.send(signal.SIGSTOP)  # it must not end before the second
    first.log = first.log.rename(first.log.with_suffix(".first.log"))
    second = scene.start()
    code = second.wait()
    seconds = time.monotonic() - second.started
    if first.ended or code == 0:  # the first was finished: the second prints its result
        first.send(signal.SIGCONT)
        return FaultOutcome(False, _problems(first, first.wait(), 0))
    problems = _problems(second, code, 1, "error: ", "another")
    first.send(signal.SIGCONT)
    problems += [f"the first: {problem}" for problem in _problems(first, first.wait(), 0)]
    return FaultOutcome(True, problems + orphans(), seconds)


def full_disk(scene: Scene) -> FaultOutcome:
    """The folder is on a small disk with free space for a random part of the results."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={scene.bytes + (64 << 20)}", "none", scene.folder], check=True)
    scene.prepare()
    ballast = scene.folder / "ballast"
    free = int(scene.bytes * scene.share)
    with ballast.open("wb") as file:
        disk = os.statvfs(scene.folder)
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - free)
    running = scene.start()
    code = running.wait()
    ballast.unlink()
    if code == 0:
        return FaultOutcome(False, orphans())
    problems = _problems(running, code, None)
    if "no space left on device" not in running.output().lower():
        problems.append(f"it does not report the full disk: {running.output()[-200:]}")
    return FaultOutcome(True, orphans() + problems)


def clock_back(scene: Scene) -> FaultOutcome:
    """The clock is set back by up to thirty days, and soon after the command is killed. The caller chooses the time of
    the command that resumes."""
    back = scene.rng.uniform(60, 30 * 86400)
    at = time.monotonic() + scene.share * scene.seconds * 0.7
    running = scene.start_until_moment(lambda: shift_clock(at, back))
    running.send(signal.SIGKILL)
    code = running.wait()
    return FaultOutcome(code == -signal.SIGKILL, orphans())


def shift_clock(at: float, back: float) -> None:
    """Set Python's calendar clock back by ``back`` seconds from the time ``at`` of the monotonic clock. The kernel's
    clock, and with it the times of files, is not changed."""
    real, real_ns, date = time.time, time.time_ns, datetime.datetime

    def shift() -> float:
        return back if time.monotonic() >= at else 0.0

    class Shifted(date):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return date.now(tz) - datetime.timedelta(seconds=shift())

    time.time = lambda: real() - shift()
    time.time_ns = lambda: real_ns() - int(shift() * 1e9)
    for module in list(sys.modules.values()):
        if vars(module).get("datetime") is date and module.__name__.startswith("dare_bench"):
            module.datetime = Shifted  # type: ignore[attr-defined]


def _problems(running: Running, code: int, expected: int | None, *phrases: str) -> list[str]:
    """The problems with the end of a command: exit code (None: any error), a traceback, phrases in its last line."""
    text = running.output()
    last = text.splitlines()[-1] if text.strip() else ""
    is_expected = code > 0 if expected is None else code == expected
    problems = [] if is_expected else [f"exit code {code}, expected {expected}: {last}"]
    problems += ["a traceback was printed"] if "Traceback" in text else []
    problems += [f"its last line does not contain {part!r}: {last}" for part in phrases if part not in last.lower()]
    problems += ["it reports a bug: " + last] if "this is a bug" in text else []
    return problems


FAULTS: dict[str, Fault] = {
    "SIGKILL": kill,
    "SIGKILL of a worker": kill_worker,
    "SIGTERM": stop_by(signal.SIGTERM),
    "SIGHUP": stop_by(signal.SIGHUP),
    "stdout closed": close_reader("stdout"),
    "stderr closed": close_reader("stderr"),
    "full disk": full_disk,
    "two processes": two_processes,
    "clock set back": clock_back,
}
