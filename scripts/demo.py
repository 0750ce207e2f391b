"""``make demo``: the main job on the bundled checkpoints, by the commands a user would type.

Evaluates the tiny LLaDA, Dream, SDAR and LLaDA2, and LLaDA's early-stopped base, on our tasks, fine-tunes the base on
sudoku for a few seconds, evaluates what comes out, compares it with its base, and builds a board of all. Running it
again resumes: what is finished is printed, not computed.
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


def say(words: list[str]) -> None:
    """Show a command and run it; leave with its exit code if it fails."""
    print(f"\n$ dare-bench {' '.join(words)}", flush=True)
    # Models this small gain nothing from a second thread, and on a busy machine threads that wait for each other lose.
    env = {"OMP_NUM_THREADS": "1", **os.environ}
    done = subprocess.run([sys.executable, "-m", "dare_bench.cli", *words], check=False, env=env)
    if done.returncode:
        raise SystemExit(done.returncode)


def newest(folder: Path, pattern: str) -> Path:
    """The finished run of that name that was written last."""
    return max(folder.glob(f"{pattern}/done.json"), key=lambda path: path.stat().st_mtime).parent


def main() -> None:
    start = time.perf_counter()
    for model in MODELS:
        say(["eval", "--model", model, "--tasks", TASKS, "--output-path", str(RUNS)])
    words = ["--task", "dare_sudoku", *SETTINGS.split(), "--eval-tasks", "dare_sudoku", "--output-path", str(TUNED)]
    say(["train", "sft", "--model", "tiny-llada-base", *words])
    base, tuned = newest(RUNS, "tiny-llada-base-dare*"), newest(TUNED / "runs", "*")
    say(["compare", str(base), str(tuned), "--task", "dare_sudoku", "--docs", "1"])
    say(["leaderboard", "build", str(RUNS), str(TUNED / "runs"), "-o", str(SITE), "--board", "demo"])
    say(["ls", "runs", str(RUNS)])
    run = newest(RUNS, "tiny-llada-dare*")
    say(["show", str(run), "--task", "dare_sudoku", "--doc", "0"])
    print(f"\nDone in {time.perf_counter() - start:.0f} s. Look at")
    print(f"  the board   {(SITE / 'index.html').resolve()}")
    print(f"  the runs    {RUNS.resolve()}")
    print(f"  the fine-tuned checkpoint  {TUNED.resolve()}")
    print(f"  one sample  .venv/bin/dare-bench show {run} --doc 1")
    print("and evaluate a checkpoint of yours with  .venv/bin/dare-bench eval --model DIR --tasks gsm8k --limit 50")
    print("(gsm8k comes from the hub; docs/data.md says how to take data sets from local files)")


if __name__ == "__main__":
    main()
