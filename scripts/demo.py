"""``make demo``: the main commands on the bundled checkpoints.

Evaluates the tiny LLaDA, Dream, SDAR and LLaDA2, and LLaDA's early-stopped base, on our tasks, fine-tunes the base on
sudoku for a few seconds, evaluates the result, compares it with its base, and builds a board of all. Running it again
resumes: finished runs are printed, not computed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RUNS, TUNED, SITE = Path("demo/runs"), Path("demo/tiny-llada-base-sft"), Path("demo/site")
DOCS = Path("build/docs/index.html")
"""The documentation, where `make docs` has built it."""
TASKS = "dare_sudoku,dare_countdown3,dare_arithmetic"
MODELS = ("tiny-llada", "tiny-dream", "tiny-llada-base", "tiny-sdar", "tiny-llada2")
SETTINGS = "--rows 3000 --max-steps 60 --per-device-train-batch-size 48 --learning-rate 1e-3 --eval-every 30"


def start(*arguments: str | Path, stdout: int | None = None) -> subprocess.Popen[str]:
    """Start a command; ``stdout`` also takes its messages."""
    # One thread: models this small gain nothing from a second one, and lose on a busy machine.
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, "-m", "dare_bench.cli", *map(str, arguments)]
    return subprocess.Popen(command, env=env, stdout=stdout, stderr=stdout and subprocess.STDOUT, text=True)


def run(*arguments: str | Path) -> None:
    """Print a command and run it; exits with its exit code if it fails."""
    print(f"\n$ dare-bench {' '.join(map(str, arguments))}", flush=True)
    if code := start(*arguments).wait():
        raise SystemExit(code)


def run_two_at_a_time(commands: Sequence[tuple[str | Path, ...]]) -> None:
    """Run commands that need one core each, two at a time where there are two, and print each with what it said; exits
    with the exit code of the first one that fails."""

    def output(arguments: tuple[str | Path, ...]) -> tuple[str, int]:
        process = start(*arguments, stdout=subprocess.PIPE)
        return process.communicate()[0], process.returncode

    with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
        for arguments, (text, code) in zip(commands, pool.map(output, commands), strict=True):
            print(f"\n$ dare-bench {' '.join(map(str, arguments))}\n{text}", end="", flush=True)
            if code:
                pool.shutdown(cancel_futures=True)
                raise SystemExit(code)


def newest(folder: Path, pattern: str) -> Path:
    """The newest finished run whose name matches ``pattern``."""
    return max(folder.glob(f"{pattern}/done.json"), key=lambda path: path.stat().st_mtime).parent


def main() -> None:
    began = time.perf_counter()
    print(f"evaluating {len(MODELS)} checkpoints (a minute or two); what is printed follows one by one", flush=True)
    run_two_at_a_time([("eval", "--model", model, "--tasks", TASKS, "--output-path", RUNS) for model in MODELS])
    data = ("--task", "dare_sudoku", *SETTINGS.split(), "--eval-tasks", "dare_sudoku")
    run("train", "sft", "--model", "tiny-llada-base", *data, "--output-path", TUNED)
    base, tuned = newest(RUNS, "tiny-llada-base-dare*"), newest(TUNED / "runs", "*")
    run("compare", base, tuned, "--task", "dare_sudoku", "--docs", "1")
    docs = ("--docs", os.path.relpath(DOCS, SITE)) if DOCS.is_file() else ()
    run("leaderboard", "build", RUNS, TUNED / "runs", "-o", SITE, "--board", "demo", *docs)
    run("ls", "runs", RUNS.parent)
    example = newest(RUNS, "tiny-llada-dare*")
    run("show", example, "--task", "dare_sudoku", "--doc", "0")
    print(f"\nDone in {time.perf_counter() - began:.0f} s. Look at")
    print(f"  the board   {(SITE / 'index.html').resolve()}")
    print(f"  the runs    {RUNS.resolve()}")
    print(f"  the fine-tuned checkpoint  {TUNED.resolve()}")
    print(f"  one sample  .venv/bin/dare-bench show {example} --doc 1")
    print("and evaluate your own checkpoint with  .venv/bin/dare-bench eval --model DIR --tasks gsm8k --limit 50")
    print("(gsm8k comes from the hub; docs/data.md says how to take data sets from local files)")


if __name__ == "__main__":
    main()
