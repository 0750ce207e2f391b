"""Detection of collapse: accuracy, format or randomness falls, and the reward does not fall with it: a policy exploits
its reward, learns from noise in it, or repeats itself.

Two halves of a window of logged steps are compared. A fall counts if a rank test (Mann-Whitney, one-sided) finds it
with p < 1e-4 and if the value falls by a share that matters, unless the reward falls too, with p < 0.05. The -log p of
drawn tokens falls in every successful training: only a fall to half of it without a rise of accuracy counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from transformers import TrainerCallback

from dare_bench.log import log
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.training.processes import first_process
from dare_bench.training.spec import TrainSpec

WINDOW = 24
"""Logged steps in a window."""
SIGNIFICANT = 1e-4
LIKELY = 0.05
LEAST_FALL = 0.1
"""Minimum share by which accuracy or format falls."""
NLL = "written_nll"
EARLIER = {"entropy": NLL}
"""Names in logs of earlier versions."""
LEAST_NLL_FALL = 0.5
LEARNED = 1e-4
"""Learning rate with which all algorithms learned in small runs, at one step on each rollout (docs/rl-runs)."""


def warn_of_large_updates(method: Algorithm, spec: TrainSpec) -> None:
    """Warn before a training whose steps on one rollout move the policy further than any that is known to learn: three
    times the learning rate times the steps of small runs, and of the method's defaults. ``spec``: with the defaults of
    the method."""
    count, usual = method.options.num_iterations, type(method.options).model_fields["num_iterations"].default
    rate, own = spec.learning_rate or 0.0, method.lora_learning_rate if spec.peft else method.learning_rate
    known = max(LEARNED, own * usual)
    if rate * count > 3 * known and first_process():
        log.warning(
            "learning_rate=%g x num_iterations=%d is %g on each rollout, and trainings are known to learn with %g: "
            "accuracy may collapse; give --learning-rate %.1g or less, or fewer --num-iterations, or watch accuracy",
            rate, count, rate * count, known, known / count,
        )  # fmt: skip


@dataclass
class CollapseDetector:
    """Entries of the log go in, warnings come out, one for each value that falls."""

    series: dict[str, list[float]] = field(default_factory=dict)
    warned: set[str] = field(default_factory=set)

    def observe(self, entry: Mapping[str, float]) -> list[str]:
        """Warnings after a further entry of the log; entries without a reward do not count."""
        if "reward" not in entry:
            return []
        entry = {EARLIER.get(name, name): value for name, value in entry.items()}
        names = {name for name in entry if name in ("accuracy", NLL) or _is_format(name)}
        for name in ("reward", *names):
            self.series[name] = [*self.series.get(name, ()), entry[name]][-WINDOW:]
        if _moved(self.series["reward"], "greater", LIKELY):
            return []
        collapsed = [name for name in sorted(names - self.warned) if self._collapses(name)]
        self.warned.update(collapsed)
        return [self._warning(name) for name in collapsed]

    def _collapses(self, name: str) -> bool:
        values = self.series[name]
        if not _moved(values, "greater"):
            return False
        before, after = _halves(values)
        least = LEAST_NLL_FALL if name == NLL else LEAST_FALL
        if mean(after) > (1 - least) * mean(before):
            return False
        return name != NLL or not _moved(self.series.get("accuracy", []), "less")

    def _warning(self, name: str) -> str:
        def change(name: str) -> str:
            before, after = _halves(self.series[name])
            return f"from {mean(before):.3g} to {mean(after):.3g}"

        remedy = (
            "lower --learning-rate, or give --beta or a higher --temperature"
            if name == NLL
            else "compare the reward with what you want, lower --learning-rate, or give --beta"
        )
        return (
            f"possible collapse: in the last {WINDOW} logged steps with a reward, {name} fell {change(name)} while the "
            f"reward went {change('reward')}; {remedy}"
        )


class CollapseWarning(TrainerCallback):
    """Logs the warnings of a training; what was logged before a resume counts, and is not repeated."""

    def __init__(self) -> None:
        self.detector = CollapseDetector()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        for entry in state.log_history:
            self.detector.observe(entry)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **_: Any) -> None:
        for warning in self.detector.observe(logs or {}):
            if state.is_world_process_zero:
                log.warning("%s", warning)


def _is_format(name: str) -> bool:
    group, _, term = name.partition("/")
    return group == "reward" and ("format" in term or term in ("answered", "boxed", "tags"))


def _halves(values: list[float]) -> tuple[list[float], list[float]]:
    return values[: WINDOW // 2], values[WINDOW // 2 :]


def _moved(values: list[float], direction: str, level: float = SIGNIFICANT) -> bool:
    """Is the first half of a full window significantly ``less`` or ``greater`` than the second?"""
    from scipy.stats import mannwhitneyu  # slow to import

    before, after = _halves(values)
    if len(values) < WINDOW or min(values) == max(values):
        return False
    return bool(mannwhitneyu(before, after, alternative=direction).pvalue < level)
