"""dare-bench commands as processes that begin at once: forked from this one, in which everything is imported.

What is left out by that, compared with a command from a shell, is the import of modules, which writes no file.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

MODULES = (
    "dare_bench.cli", "dare_bench.engine.evaluate", "dare_bench.harness.lm_eval.source",
    "dare_bench.harness.lm_eval.code_tasks",
    "dare_bench.harness.opencompass.source", "dare_bench.trainers.sft", "dare_bench.trainers.loop",
    "dare_bench.training.run", "dare_bench.sweeps.run", "dare_bench.leaderboards.builder",
    "dare_bench.model_adapters.llada.family", "lm_eval.evaluator", "opencompass.datasets", "opencompass.openicl",
    "rich.progress", "statsmodels.stats.proportion", "torch.utils.tensorboard",
)  # fmt: skip
PATIENCE = 600.0
"""Seconds after which a command that does not end is said to hang; no command here takes a tenth of it."""


class Hangs(Exception):
    """A command did not end."""


def warm() -> None:
    """Import what the commands need, and have their orphans handed to this process."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name in MODULES:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@dataclass
class Running:
    """A command that was started in ``folder``; what it says stands in ``log``."""

    process: BaseProcess
    log: Path
    began: float

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it ended by itself
            os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code; below zero: the signal that ended it. Raises Hangs."""
        self.process.join(PATIENCE)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise Hangs(f"no end after {PATIENCE:g} s: {self.said()[-200:]}")
        return self.process.exitcode

    def said(self) -> str:
        return self.log.read_text(errors="replace")


def start(
    words: Sequence[str],
    folder: Path,
    before: Callable[[], None] = lambda: None,
    *,
    streams: tuple[int | None, int | None] = (None, None),
) -> Running:
    """Begin ``dare-bench words`` in ``folder``. ``streams``: where stdout and stderr go instead of the log."""
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    log.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = (list(words), folder, log, before, streams)
    process = get_context("fork").Process(target=_run, args=arguments, daemon=False)
    process.start()
    return Running(process, log, time.monotonic())


def _run(
    words: list[str], folder: Path, log: Path, before: Callable[[], None], streams: tuple[int | None, int | None]
) -> None:
    os.setsid()
    os.chdir(folder)
    kept = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, stream in enumerate(streams, start=1):
        os.dup2(kept if stream is None else stream, number)
    for stream in (kept, *streams):
        if stream is not None:
            os.close(stream)
    os.environ["DARE_BENCH_CACHE"] = str(folder.with_name(f"{folder.name}.cache"))
    before()
    from dare_bench.cli import main

    main(words)


def orphans(seconds: float = 20.0) -> list[str]:
    """Processes that a command left behind and that do not end by themselves; they are ended here."""
    end = time.monotonic() + seconds
    while (left := _descendants()) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was left behind: {name}" for pid, name in left.items()]


def _descendants() -> dict[int, str]:
    """Living processes below this one; dead ones that were handed to it are taken note of."""
    parents: dict[int, tuple[int, str, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(") ")
            except OSError:
                continue
            state, parent = rest.split()[:2]
            parents[int(entry.name)] = (int(parent), state, name)
    mine, found = {os.getpid()}, dict[int, str]()
    while more := {pid for pid, (parent, _, _) in parents.items() if parent in mine} - mine:
        mine |= more
    for pid in mine - {os.getpid()}:
        parent, state, name = parents[pid]
        if state == "Z" and parent == os.getpid():
            os.waitpid(pid, os.WNOHANG)
        elif state != "Z":
            found[pid] = name
    return found
