"""A board of 300 runs and 12 tasks, as runs in the format of real ones: 50 checkpoints with six budgets each."""

from __future__ import annotations

import random
from pathlib import Path

from run_factory import alter, make_run

TASKS = (*(f"task_{number:02d}" for number in range(10)), "choice_a", "choice_b")
FAMILIES = ("llada", "dream", "sdar", "llada2")
BUDGETS = (2, 4, 8, 16, 32, 64)


def make_large_board(root: Path, runs: int = 300) -> None:
    """Later checkpoints are better, and so are larger budgets; each run has two documents of each task, 36
    requests in all."""
    rng = random.Random(0)
    for at in range(runs):
        model, budget = divmod(at, len(BUDGETS))
        level = 0.2 + 0.5 * model * len(BUDGETS) / runs + 0.2 * budget / len(BUDGETS)
        folder = make_run(
            root,
            f"run-{at:03d}",
            model=f"model-{model:02d}",
            content=f"{model:064x}",
            tasks={task: min(max(rng.gauss(level, 0.2), 0.0), 1.0) for task in TASKS},
            n_docs=2,
            n_total=2,
            documents="same",
            decoding={"steps": BUDGETS[budget]},
            created=f"2026-11-{1 + at // 24:02d}T{at % 24:02d}:00:00",
        )
        alter(folder, model__family=FAMILIES[model % len(FAMILIES)], cost__nfe=36 * BUDGETS[budget])
