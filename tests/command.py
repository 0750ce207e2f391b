"""``dare-bench`` in processes of its own that start quickly: they are forked from a server that has imported torch,
transformers and lm-eval, which is most of what a command costs.

Exit codes, output, files, locks and signals are those of a program that was started. Tests of what a fresh program
imports, and how soon, start Python themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

_IMPORTED = (
    "accelerate",
    "dare_bench.cli",
    "dare_bench.engine.evaluate",
    "dare_bench.training.run",
    "datasets",
    "lm_eval.tasks",
    "peft",
    "statsmodels.stats.proportion",
    "torch.utils.tensorboard",
    "transformers",
)
"""What is missing among these is imported by the command itself."""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(list(_IMPORTED))


def start(
    words: Sequence[str],
    stdout: str | Path = os.devnull,
    stderr: str | Path = os.devnull,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> BaseProcess:
    """Start ``dare-bench WORDS``; what it prints goes to the two files. ``env`` replaces the environment."""
    given = dict(os.environ if env is None else env)
    process = _context.Process(
        target=_command, args=(list(words), str(stdout), str(stderr), given, str(cwd or Path.cwd()))
    )
    process.start()
    return process


def run(
    *words: str, env: Mapping[str, str] | None = None, cwd: str | Path | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run ``dare-bench WORDS`` to its end. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        process = start(words, out, err, env, cwd)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(list(words), process.exitcode, out.read_text(), err.read_text())


def _command(words: list[str], stdout: str, stderr: str, env: dict[str, str], cwd: str) -> None:
    for number, name in ((1, stdout), (2, stderr)):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    sys.argv = ["dare-bench", *words]
    from dare_bench.cli import main

    main()
