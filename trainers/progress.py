"""Progress of a training on stderr: a line for each entry of the log, with remaining time; on a terminal also a bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

from dare_bench.formatting import duration

NAMES = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad"}
"""Short names of entries of the log; the metrics of a method keep their names."""
FIRST = ("loss", "eval_loss", "reward", "accuracy", "informative_groups", "kl", "grad_norm", "learning_rate")
"""What a line has first; the others follow as long as they fit."""
WIDTH = 100
"""Columns of a line. Trackers and ``trainer_state.json`` have every entry."""
_HIDDEN = frozenset({"epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"})
_PHASES = ("forwards/", "tokens_per_second/", "seconds/")
"""What is measured by phase."""


class TrainingProgress(TrainerCallback):
    """Shows step, loss and metrics, rows per second and remaining time. ``items``: items of an optimizer step."""

    def __init__(self, items: int) -> None:
        self.items, self.first = items, 0
        self.bar: Any = None
        self.terminal = sys.stderr.isatty()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first, self.started = state.global_step, time.monotonic()
        if state.is_world_process_zero and self.terminal:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="train", unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs or not logs.keys() & {"loss", "eval_loss"}:
            return
        head = f"step {state.global_step}/{state.max_steps}: "
        if "loss" not in logs:
            tqdm.write(head + log_line(logs, WIDTH - len(head)), file=sys.stderr)
            return
        if self.bar is not None:  # all metrics would leave no space for the bar
            self.bar.set_postfix_str(f"loss {_short(logs['loss'])}")
        done = state.global_step - self.first
        rate = done / max(time.monotonic() - self.started, 1e-9)
        pace = f"{rate * self.items:.1f} rows/s"
        if done and (left := (state.max_steps - state.global_step) / rate) > 0:
            pace += f", {duration(max(1, left))} left"
        tqdm.write(f"{head}{log_line(logs, WIDTH - len(head) - len(pace) - 2)}, {pace}", file=sys.stderr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def log_line(logs: Mapping[str, Any], width: int) -> str:
    """An entry of the log as text of at most so many columns (``reward 0.5 (std 0.1)``), the main figures first,
    without what is measured by phase."""
    values = {k: v for k, v in logs.items() if k not in _HIDDEN and isinstance(v, int | float)}
    line = ""
    for name in sorted(values, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST)):
        if name.startswith(_PHASES) or (name.endswith("_std") and name.removesuffix("_std") in values):
            continue
        std = f" (std {_short(values['reward_std'])})" if name == "reward" and "reward_std" in values else ""
        part = f"{', ' if line else ''}{NAMES.get(name, name)} {_short(values[name])}{std}"
        line += part if len(line) + len(part) <= width or not line else ""
    return line


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e4 else f"{value:.4f}"
