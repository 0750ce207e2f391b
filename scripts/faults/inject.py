"""The faults. Each begins a command in a folder, does it harm at a moment, and checks how the command took it."""

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

from faults.commands import Running, orphans, start
from faults.holds import answers

PROMPT = 30.0
"""Seconds within which a command must leave when it is asked to, on a machine that does other work, too."""


@dataclass
class Met:
    """How a command took a fault: in time before its end or not, how long it needed to leave, and what was wrong."""

    in_time: bool
    problems: list[str] = field(default_factory=list)
    seconds: float | None = None


@dataclass
class Scene:
    """What a fault is given: the command, its folder, a moment (a share of the unbroken run), that run's figures."""

    words: Sequence[str]
    folder: Path
    share: float
    seconds: float
    """Of the unbroken run."""
    bytes: int
    """Of disk that the unbroken run took."""
    rng: random.Random
    after: int | None = None
    """The moment comes when so many samples and checkpoints are finished; None: by the clock."""

    def begin(self, before: Callable[[], None] = lambda: None, **more: Any) -> Running:
        return start(self.words, self.folder, before, **more)

    def until_moment(self, running: Running) -> None:
        if self.after is None:
            running.process.join(max(0.0, running.began + self.share * self.seconds - time.monotonic()))
            return
        while not running.ended and answers(self.folder) < self.after:
            time.sleep(0.002)


Fault = Callable[[Scene], Met]


def kill(scene: Scene) -> Met:
    """SIGKILL to the command; its worker processes have to notice."""
    running = scene.begin()
    scene.until_moment(running)
    running.send(signal.SIGKILL)
    code = running.wait()
    return Met(code == -signal.SIGKILL, orphans())


def kill_worker(scene: Scene) -> Met:
    """SIGKILL to one of the command's worker processes: the command itself begins its work again."""
    running = scene.begin()
    scene.until_moment(running)
    workers = _workers(running.pid)
    if workers:
        os.kill(scene.rng.choice(workers), signal.SIGKILL)
    code = running.wait()
    return Met(bool(workers), orphans() + _expect(running, code, 0))


def _workers(pid: int) -> list[int]:
    """The child processes that were spawned to work; the resource tracker is not one of them."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
    except OSError:
        return []


def stop_by(number: signal.Signals) -> Fault:
    """A signal that asks a command to end: it says so in one line, soon, and nothing stays behind."""

    def fault(scene: Scene) -> Met:
        running = scene.begin()
        scene.until_moment(running)
        running.send(number)
        began = time.monotonic()
        code = running.wait()
        took = time.monotonic() - began
        if code == 0:
            return Met(False, orphans())
        problems = orphans() + _expect(running, code, 128 + number, f"interrupted by {number.name.lower()}")
        if code == -number and not running.said():  # before the first line of the program ran
            problems = []
        if took > PROMPT:
            problems.append(f"took {took:.0f} s to leave")
        return Met(True, problems, took)

    return fault


def close_reader(stream: str) -> Fault:
    """The reader of stdout or stderr goes away: the work goes on to its end."""

    def fault(scene: Scene) -> Met:
        reader, writer = os.pipe()
        streams = (writer, None) if stream == "stdout" else (None, writer)
        running = scene.begin(streams=streams)
        os.close(writer)
        scene.until_moment(running)
        in_time = not running.ended
        os.close(reader)
        code = running.wait()
        return Met(in_time, orphans() + _expect(running, code, 0))

    return fault


def two_processes(scene: Scene) -> Met:
    """The same command once more while the first is at work: the second says so, the first is not disturbed."""
    first = scene.begin()
    scene.until_moment(first)
    while not first.ended and not any(scene.folder.rglob(".lock")):
        time.sleep(0.01)
    first.send(signal.SIGSTOP)  # it must not end while the second looks
    log = first.log.rename(first.log.with_suffix(".first.log"))
    second = scene.begin()
    began = time.monotonic()
    code = second.wait()
    took = time.monotonic() - began
    if first.ended or code == 0:  # it was finished already: the second shows what there is
        first.send(signal.SIGCONT)
        return Met(False, _expect(Running(first.process, log, first.began), first.wait(), 0))
    problems = _expect(second, code, 1, "error: ", "another")
    first.send(signal.SIGCONT)
    first.log = log
    problems += [f"the first: {problem}" for problem in _expect(first, first.wait(), 0)]
    return Met(True, problems + orphans(), took)


def full_disk(scene: Scene) -> Met:
    """The command's folder lies on a small disk, where a random part of what it needs is free."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={scene.bytes + (64 << 20)}", "none", scene.folder], check=True)
    prepare = getattr(scene, "prepare", None)
    if prepare is not None:
        prepare(scene.folder)
    ballast = scene.folder / "ballast"
    free = int(scene.bytes * scene.share)
    with ballast.open("wb") as file:
        found = os.statvfs(scene.folder)
        os.posix_fallocate(file.fileno(), 0, found.f_bavail * found.f_frsize - free)
    running = scene.begin()
    code = running.wait()
    ballast.unlink()
    if code == 0:
        return Met(False, orphans())
    problems = _expect(running, code, None)
    if "no space left on device" not in running.said().lower():
        problems.append(f"it does not say that the disk is full: {running.said()[-200:]}")
    return Met(True, orphans() + problems)


def clock_back(scene: Scene) -> Met:
    """At the moment the clock is set back by up to thirty days, and soon after the command is killed. The command that
    resumes has the true time again or an even earlier one: that is up to the caller."""
    back = scene.rng.uniform(60, 30 * 86400)
    at = time.monotonic() + scene.share * scene.seconds * 0.7
    running = scene.begin(lambda: shift_clock(at, back))
    scene.until_moment(running)
    running.send(signal.SIGKILL)
    code = running.wait()
    return Met(code == -signal.SIGKILL, orphans())


def shift_clock(at: float, back: float) -> None:
    """From the moment ``at`` (of the monotonic clock) on, Python's calendar clock is ``back`` seconds early. The clock
    of the kernel, and with it the times of files, stays as it is: it is everybody's."""
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


def _expect(running: Running, code: int, wanted: int | None, *said: str) -> list[str]:
    """What is wrong with how a command left: the exit code, a traceback, its last line."""
    text = running.said()
    last = text.splitlines()[-1] if text.strip() else ""
    fits = code > 0 if wanted is None else code == wanted
    problems = [] if fits else [f"exit code {code}, expected {wanted}: {last}"]
    problems += ["a traceback was shown"] if "Traceback" in text else []
    problems += [f"its last line does not say {part!r}: {last}" for part in said if part not in last.lower()]
    problems += ["it says that this is a bug: " + last] if "this is a bug" in text else []
    return problems
