"""What the phases of a training cost: forwards, tokens and seconds of the rollout, of passes without gradients (score),
and of the update."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Phase = Literal["rollout", "reward", "score", "update"]
COUNTED = ("forwards", "tokens")


@dataclass
class PhaseCost:
    """``forwards`` are counted per row: a forward of four rows is four. ``tokens`` are those that the network read."""

    forwards: int = 0
    tokens: int = 0
    seconds: float = 0.0


Counts = Mapping[str, Mapping[str, int]]
"""Row forwards and tokens by phase: ``{"forwards": {"rollout": 12800, "update": 1200}, "tokens": {...}}``."""


class Phases:
    """The costs of this process since the last :meth:`take`, by phase. ``earlier``: what all processes had counted in
    the checkpoint that the training continues from; None: it has no counts, so that those of the whole training are not
    known."""

    def __init__(self, earlier: Counts | None) -> None:
        self.steps = 0
        self.earlier = earlier
        self._taken = {name: Counter[str]() for name in COUNTED}
        self.costs: dict[Phase, PhaseCost] = {}
        self._running: list[Phase] = []
        self._since = 0.0

    @contextlib.contextmanager
    def measure(self, phase: Phase) -> Iterator[PhaseCost]:
        """Add the time inside to a phase, whose counts can be increased; an outer phase waits meanwhile."""
        self._pass_time()
        self._running.append(phase)
        try:
            yield self.costs.setdefault(phase, PhaseCost())
        finally:
            self._pass_time()
            self._running.pop()

    def _pass_time(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.costs.setdefault(self._running[-1], PhaseCost()).seconds += now - self._since
        self._since = now

    def take(self, processes: int) -> dict[str, tuple[float, float]]:
        """Metrics: seconds of a process and forwards of all in an optimizer step, tokens per second of a process.
        Begins anew."""
        metrics = {}
        self._taken = self._counts()
        for phase, cost in self.costs.items():
            metrics[f"seconds/{phase}"] = (cost.seconds, float(self.steps))
            if cost.forwards:
                metrics[f"forwards/{phase}"] = (float(cost.forwards), self.steps / processes)
                metrics[f"tokens_per_second/{phase}"] = (float(cost.tokens), cost.seconds)
        self.costs, self.steps = {}, 0
        return metrics

    def _counts(self) -> dict[str, Counter[str]]:
        """What this process has counted since the training began or continued."""
        counts = {name: Counter(phases) for name, phases in self._taken.items()}
        for phase, cost in self.costs.items():
            for name in COUNTED:
                if count := getattr(cost, name):
                    counts[name][phase] += count
        return counts

    def totals(self, gather: Callable[[Any], Iterable[Counts]]) -> Counts | None:
        """What the training has counted so far in all processes, whose values ``gather`` returns; called by all
        together. None if a checkpoint that the training continued from has no counts."""
        parts = gather(self._counts())
        if self.earlier is None:
            return None
        totals = {name: Counter(self.earlier.get(name, {})) for name in COUNTED}
        for part in parts:
            for name, phases in part.items():
                totals[name].update(phases)
        return {name: dict(sorted(phases.items())) for name, phases in totals.items()}
