"""dare-bench commands as processes that start quickly: they are forked from this one, which has imported everything.

Compared with a command in a shell, only the import of modules is missing, which writes no file.
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

from dare_bench.sandbox.processes import below

MODULES = (
    "dare_bench.cli", "dare_bench.engine.evaluate", "dare_bench.harness.lm_eval.source",
    "dare_bench.harness.lm_eval.code_tasks",
    "dare_bench.harness.opencompass.source", "dare_bench.trainers.sft", "dare_bench.trainers.loop",
    "dare_bench.training.run", "dare_bench.sweeps.run", "dare_bench.leaderboards.builder",
    "dare_bench.model_adapters.llada.family", "lm_eval.evaluator", "opencompass.datasets", "opencompass.openicl",
    "rich.progress", "statsmodels.stats.proportion", "torch.utils.tensorboard",
)  # fmt: skip
TIMEOUT = 600.0
"""Seconds after which a command is considered to hang; no command here takes a tenth of it."""


class Hangs(Exception):
    """A command did not end within the timeout."""


def warm() -> None:
    """Import the modules of the commands, and make this process the parent of their orphans."""
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"HF_DATASETS_OFFLINE": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    for name in MODULES:
        importlib.import_module(name)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


@dataclass
class Running:
    """A started command; ``log`` contains its output."""

    process: BaseProcess
    log: Path
    started: float

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    @property
    def ended(self) -> bool:
        return self.process.exitcode is not None

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code, or minus the signal that ended it. Raises Hangs."""
        self.process.join(TIMEOUT)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise Hangs(f"no end after {TIMEOUT:g} s: {self.output()[-200:]}")
        return self.process.exitcode

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def start(
    arguments: Sequence[str],
    folder: Path,
    setup: Callable[[], None] = lambda: None,
    *,
    streams: tuple[int | None, int | None] = (None, None),
) -> Running:
    """Start ``dare-bench`` in ``folder``.

    Args:
        setup: called in the new process before the command.
        streams: file descriptors of stdout and stderr; None: the log.
    """
    log = folder.with_name(f"{folder.name}.log")
    log.unlink(missing_ok=True)
    log.touch()
    sys.stdout.flush()
    sys.stderr.flush()
    process = get_context("fork").Process(target=_run, args=(list(arguments), folder, log, setup, streams))
    process.start()
    return Running(process, log, time.monotonic())


def _run(
    arguments: list[str], folder: Path, log: Path, setup: Callable[[], None], streams: tuple[int | None, int | None]
) -> None:
    os.setsid()
    os.chdir(folder)
    log_file = os.open(log, os.O_WRONLY | os.O_APPEND)
    for number, stream in enumerate(streams, start=1):
        os.dup2(log_file if stream is None else stream, number)
    for stream in (log_file, *streams):
        if stream is not None:
            os.close(stream)
    os.environ["DARE_BENCH_CACHE"] = str(folder.with_name(f"{folder.name}.cache"))
    setup()
    from dare_bench.cli import main

    main(arguments)


def orphans(seconds: float = 20.0) -> list[str]:
    """Messages about the processes that a command left behind and that do not end by themselves; they are killed."""
    end = time.monotonic() + seconds
    while (left := _descendants()) and time.monotonic() < end:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return [f"process {pid} was left behind: {name}" for pid, name in left.items()]


def _descendants() -> dict[int, str]:
    """Process id and name of the running descendants of this process; zombie children are reaped."""
    running = {}
    for pid in below(os.getpid()):
        with contextlib.suppress(OSError):  # it has ended
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition(" (")[2].rpartition(") ")
            state, parent = rest.split()[:2]
            if state != "Z":
                running[pid] = name
            elif int(parent) == os.getpid():
                os.waitpid(pid, os.WNOHANG)
    return running
