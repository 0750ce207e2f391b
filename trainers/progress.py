"""Progress of a training on stderr: lines with loss, figures and time left; on a terminal a bar below them."""

from __future__ import annotations

import sys
import time
from typing import Any

from tqdm import tqdm
from transformers import TrainerCallback

SHOWN = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad"}
"""What is shown of a log entry, with its short name; a method's own figures are shown by theirs."""
_LEFT_OUT = frozenset({"epoch", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"})
LINE_EVERY = 5.0


class TrainingProgress(TrainerCallback):
    """Shows step, loss and figures, items per second, time left.

    Args:
        items: items of an optimizer step.
    """

    def __init__(self, items: int) -> None:
        self.items, self.first = items, 0
        self.bar: Any = None
        self.terminal = sys.stderr.isatty()
        self.said = 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.first, self.started = state.global_step, time.monotonic()
        if state.is_world_process_zero and self.terminal:
            self.bar = tqdm(total=state.max_steps, initial=state.global_step, desc="train", unit="step")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.update(1)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        figures = {SHOWN.get(k, k): v for k, v in logs.items() if k not in _LEFT_OUT and isinstance(v, int | float)}
        text = ", ".join(f"{name} {_short(value)}" for name, value in figures.items())
        if self.bar is not None:  # all figures would leave no room for the bar
            self.bar.set_postfix_str(f"loss {_short(logs['loss'])}")
        now = time.monotonic()
        if now - self.said < LINE_EVERY and state.global_step not in (1, state.max_steps):
            return
        self.said = now
        done = state.global_step - self.first
        rate = done / max(now - self.started, 1e-9)
        left = (state.max_steps - state.global_step) / rate if done else 0.0
        pace = f"{rate * self.items:.1f} rows/s, {_clock(left)} left"
        line = f"step {state.global_step}/{state.max_steps}: {text}, {pace}"
        if self.bar is not None:
            self.bar.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self.bar is not None:
            self.bar.close()


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1e-2 or abs(value) >= 1e4 else f"{value:.4f}"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
