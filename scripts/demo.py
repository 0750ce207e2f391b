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
from pathlib import Path

RUNS, TUNED, SITE = Path("demo/runs"), Path("demo/tiny-llada-base-sft"), Path("demo/site")
TASKS = "dare_sudoku,dare_countdown3,dare_arithmetic"
MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2", "tiny-llada-base")
SETTINGS = "--rows 3000 --max-steps 60 --per-device-train-batch-size 48 --learning-rate 1e-3 --eval-every 30"


def run(*arguments: str | Path) -> None:
    """Print a command and run it; exits with its exit code if it fails."""
    command = list(map(str, arguments))
    print(f"\n$ dare-bench {' '.join(command)}", flush=True)
    # One thread: models this small gain nothing from a second one, and lose on a busy machine.
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    if code := subprocess.run([sys.executable, "-m", "dare_bench.cli", *command], check=False, env=env).returncode:
        raise SystemExit(code)


def newest(folder: Path, pattern: str) -> Path:
    """The newest finished run whose name matches ``pattern``."""
    return max(folder.glob(f"{pattern}/done.json"), key=lambda path: path.stat().st_mtime).parent


def main() -> None:
    start = time.perf_counter()
    for model in MODELS:
        run("eval", "--model", model, "--tasks", TASKS, "--output-path", RUNS)
    data = ("--task", "dare_sudoku", *SETTINGS.split(), "--eval-tasks", "dare_sudoku")
    run("train", "sft", "--model", "tiny-llada-base", *data, "--output-path", TUNED)
    base, tuned = newest(RUNS, "tiny-llada-base-dare*"), newest(TUNED / "runs", "*")
    run("compare", base, tuned, "--task", "dare_sudoku", "--docs", "1")
    run("leaderboard", "build", RUNS, TUNED / "runs", "-o", SITE, "--board", "demo")
    run("ls", "runs", RUNS.parent)
    example = newest(RUNS, "tiny-llada-dare*")
    run("show", example, "--task", "dare_sudoku", "--doc", "0")
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Look at")
    print(f"  the board   {(SITE / 'index.html').resolve()}")
    print(f"  the runs    {RUNS.resolve()}")
    print(f"  the fine-tuned checkpoint  {TUNED.resolve()}")
    print(f"  one sample  .venv/bin/dare-bench show {example} --doc 1")
    print("and evaluate your own checkpoint with  .venv/bin/dare-bench eval --model DIR --tasks gsm8k --limit 50")
    print("(gsm8k comes from the hub; docs/data.md says how to take data sets from local files)")


if __name__ == "__main__":
    main()
