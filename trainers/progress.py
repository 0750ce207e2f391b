"""Progress of a training on stderr: a line for each entry of the log, with loss, metrics and remaining time; on a
terminal also a bar."""

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
PHASES = {"forwards": "forwards", "tokens_per_second": "tokens/s", "seconds": "seconds"}
"""What is measured by phase, with its name in a line."""
_HIDDEN = frozenset({"epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"})


class TrainingProgress(TrainerCallback):
    """Shows step, loss and metrics, rows per second and remaining time.

    Args:
        items: items of an optimizer step.
    """

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
        text = log_line(logs)
        if "loss" not in logs:
            tqdm.write(f"step {state.global_step}/{state.max_steps}: {text}", file=sys.stderr)
            return
        if self.bar is not None:  # all metrics would leave no space for the bar
            self.bar.set_postfix_str(f"loss {_short(logs['loss'])}")
        done = state.global_step - self.first
        rate = done / max(time.monotonic() - self.started, 1e-9)
        pace = f"{rate * self.items:.1f} rows/s"
        if done and (left := (state.max_steps - state.global_step) / rate) > 0:
            pace += f", {duration(max(1, left))} left"
        tqdm.write(f"step {state.global_step}/{state.max_steps}: {text}, {pace}", file=sys.stderr)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def log_line(logs: Mapping[str, Any]) -> str:
    """An entry of the log as text: ``reward 0.5 (std 0.1)``, phases side by side."""
    values = {k: v for k, v in logs.items() if k not in _HIDDEN and isinstance(v, int | float)}
    parts, phases = [], dict[str, list[str]]()
    for name, value in values.items():
        group, _, member = name.partition("/")
        if group in PHASES and member:
            phases.setdefault(group, []).append(f"{member} {value:,.0f}" if value >= 100 else f"{member} {value:.3g}")
        elif (std := values.get(f"{name}_std")) is not None:
            parts.append(f"{name} {_short(value)} (std {_short(std)})")
        elif name.removesuffix("_std") == name or name.removesuffix("_std") not in values:
            parts.append(f"{NAMES.get(name, name)} {_short(value)}")
    lines = [f"{PHASES[group]} {' '.join(members)}" for group, members in phases.items()]
    return ", ".join([*parts, *lines])


def _short(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e4 else f"{value:.4f}"
