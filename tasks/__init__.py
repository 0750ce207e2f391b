"""Our own tasks (ordinary lm-eval task folders over small data that we generate by seed), recipes and suites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if __name__ != "dare_bench.tasks":
    raise ImportError(f"import dare_bench.tasks, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


TRAINING = {
    "dare_sudoku": "dare_sudoku.training:DATA",
    "dare_arithmetic": "dare_arithmetic.training:DATA",
    "dare_countdown3": "dare_countdown.training:THREE",
    "dare_countdown4": "dare_countdown.training:FOUR",
    "dare_sort": "dare_sort.training:DATA",
    "gsm8k": "training:GSM8K",
}
"""Tasks with a training split: generated (``training.TrainingData``), or of the hub (``training.HubData``)."""

_OWN = "the task's exact_match; option format_weight: partial credit for its {}"
REWARDS = {
    "dare_sudoku": ("rewards:SUDOKU", _OWN.format("cell_accuracy")),
    "dare_arithmetic": ("rewards:ARITHMETIC", _OWN.format("digit_accuracy")),
    "dare_countdown3": ("rewards:COUNTDOWN", _OWN.format("format")),
    "dare_countdown4": ("rewards:COUNTDOWN", _OWN.format("format")),
    "dare_sort": ("rewards:SORT", _OWN.format("format")),
    "countdown": ("tagged_rewards:countdown", "an expression in answer tags; option scheme=exact|d1|dare"),
    "sudoku": ("tagged_rewards:sudoku", "fraction of the empty cells that are right, in answer tags; option exact"),
}
"""Rewards of our own tasks, and of the data of DARE and d1."""


def register(registry: Registry) -> None:
    """This folder is searched for lm-eval task files before lm-eval's. A recipe file holds a checkpoint's published
    scores, a suite file several benchmarks; both are registered by file name."""
    here = Path(__file__).parent
    registry.add("task_folder", "dare", str(here), origin=__name__)
    for name, target in TRAINING.items():
        registry.add("training_data", name, f"dare_bench.tasks.{target}", origin=__name__)
    for name, (target, about) in REWARDS.items():
        registry.add("reward", name, f"dare_bench.tasks.{target}", origin=__name__, about=about, checks_rows=True)
    for kind in ("recipe", "suite"):
        for file in sorted((here / f"{kind}s").glob("*.yaml")):
            registry.add(kind, file.stem, str(file), origin=__name__)
