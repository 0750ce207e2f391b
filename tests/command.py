"""``dare-bench`` and our scripts in processes that start quickly: they are forked from a server that has imported
torch, transformers and lm-eval, which is most of what a command costs.

Exit codes, output, files, locks and signals are those of a program that was started. Tests of what a fresh program
imports, and how soon, start Python themselves.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
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
    "dare_bench.harness.lm_eval.source",
    "dare_bench.model_adapters.llada.family",
    "dare_bench.model_adapters.sampling.loop",
    "dare_bench.model_adapters.scoring.score",
    "dare_bench.tasks.training",
    "dare_bench.trainers.sft",
    "dare_bench.training.run",
    "datasets",
    "lm_eval.evaluator",
    "lm_eval.tasks",
    "peft",
    "statsmodels.stats.proportion",
    "torch.utils.tensorboard",
    "transformers.trainer",
)
"""What is missing among these is imported by the command itself."""

forkserver = multiprocessing.get_context("forkserver")
forkserver.set_forkserver_preload([*_IMPORTED, "tests.huge_pages"])


def start(
    words: Sequence[str],
    stdout: str | Path = os.devnull,
    stderr: str | Path = os.devnull,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    script: Path | None = None,
) -> BaseProcess:
    """Start ``dare-bench WORDS``, or a script of ours with these arguments.

    What it prints goes to the two files. ``env`` replaces the environment.
    """
    given = dict(os.environ if env is None else env)
    arguments = (list(words), str(stdout), str(stderr), given, str(cwd or Path.cwd()), script)
    process = forkserver.Process(target=call, args=arguments)
    process.start()
    return process


def run(
    *words: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    script: Path | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; see :func:`start`. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="command-") as folder:
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        process = start(words, out, err, env, cwd, script)
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout, out.read_text(), err.read_text())
        return subprocess.CompletedProcess(list(words), process.exitcode, out.read_text(), err.read_text())


def redirect(stdout: str | Path, stderr: str | Path) -> None:
    """Send what this process prints to two files, or one."""
    for number, name in ((1, stdout), (2, stderr)):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        os.dup2(handle, number)
        os.close(handle)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))


def call(words: list[str], stdout: str, stderr: str, env: dict[str, str], cwd: str, script: Path | None) -> None:
    """Be the command, in this process."""
    redirect(stdout, stderr)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a server in the background begins with it ignored
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    os.chdir(cwd)
    sys.argv = [str(script or "dare-bench"), *words]
    if script is None:
        from dare_bench.cli import main

        main()
    else:
        sys.path.insert(0, str(script.parent))
        runpy.run_path(str(script), run_name="__main__")
