"""The validation loss of a training, its best checkpoint by a metric of its evaluations, and when to stop. The latter
two follow from the log alone, with the patience and threshold of ``transformers.EarlyStoppingCallback``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import EarlyStoppingCallback

from dare_bench.errors import TrainingError
from dare_bench.seeds import key
from dare_bench.trainers.forwards import Forwards
from dare_bench.trainers.objective import Losses, Metrics, Objective, add_metrics
from dare_bench.trainers.phases import Phases
from dare_bench.trainers.steps import StepShape
from dare_bench.training.processes import first_process
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec

SEED = key("validation") % 2**32


class Validation:
    """The validation loss of an objective: the mean over batches as large as an optimizer step, the last filled up with
    rows of a second pass. Its forwards are not counted."""

    def __init__(self, objective: Objective, data: Tokens, shape: StepShape, process: int, forwards: Forwards) -> None:
        self.objective, self.processes = objective, shape.processes
        self.source = objective.source(data, shape, SEED, process)
        self.batches = math.ceil(self.source.rows / shape.items_per_step)
        self.forwards = Forwards(objective, forwards.spec, forwards.accelerator, Phases({}), forwards.sequence)

    @torch.no_grad()
    def metrics(self, network: Any, reference: Losses | None) -> Metrics:
        """This process's sums of the loss and the objective's metrics."""
        sums: dict[str, tuple[float, float]] = {}
        network.eval()
        for number in range(self.batches):
            step = self.source.step(number)
            loss, metrics = self.objective.loss(step, self.forwards.values(network, step).double(), reference)
            add_metrics(sums, {**metrics, "loss": (float(loss), 1 / self.processes)})
        network.train()
        return sums


@dataclass(frozen=True)
class Best:
    """The step and the value of the best evaluation, and whether ``early_stopping_patience`` is exhausted."""

    step: int
    value: float
    stop: bool

    def describe(self, spec: TrainSpec, last: int, planned: int) -> str:
        """The result after the ``last`` of the ``planned`` steps, for the user."""
        text = f"best checkpoint: step {self.step} of {last}, {spec.metric_for_best_model}={self.value:.6g}"
        if self.stop and last < planned:
            count = spec.early_stopping_patience
            return f"{text}; stopped early, no better one in {count} evaluation{'s' * (count != 1)}"
        return text


def agreed(spec: TrainSpec, log: Sequence[Mapping[str, Any]]) -> Best | None:
    """:func:`best_of` by the log of the first process, which has all scores, in all processes."""
    judged: list[Best | TrainingError | None] = [None]
    if first_process():
        try:
            judged = [best_of(spec, log)]
        except TrainingError as error:
            judged = [error]
    broadcast_object_list(judged)
    if isinstance(judged[0], TrainingError):
        raise judged[0]
    return judged[0]


def best_of(spec: TrainSpec, log: Sequence[Mapping[str, Any]]) -> Best | None:
    """The best of the evaluations in a log (equal ones: the first); None if it has none. Raises TrainingError:
    evaluations without the metric."""
    metric = spec.best_metric
    assert metric is not None
    values = {int(entry["step"]): float(entry[metric]) for entry in log if metric in entry}
    if not values:
        found = sorted({name for entry in log for name in entry if name.startswith("eval_")})
        if found:
            raise TrainingError(
                f"metric_for_best_model={spec.metric_for_best_model!r}: no evaluation has it; they have "
                f"{', '.join(name.removeprefix('eval_') for name in found)}"
            )
        return None
    patience = EarlyStoppingCallback(spec.early_stopping_patience or 1, spec.early_stopping_threshold)
    greater = spec.is_greater_better
    settings, state, best = SimpleNamespace(greater_is_better=greater), SimpleNamespace(best_metric=None), 0
    for step, value in sorted(values.items()):
        patience.check_metric_value(settings, state, None, value)
        if state.best_metric is None or (value > state.best_metric if greater else value < state.best_metric):
            state.best_metric, best = value, step
    exhausted = patience.early_stopping_patience_counter >= patience.early_stopping_patience
    return Best(best, state.best_metric, spec.early_stopping_patience is not None and exhausted)
