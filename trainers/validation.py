"""The loss on rows that are not trained on. Noise and canvases are the same at each validation and for every seed."""

from __future__ import annotations

import math
from typing import Any

import torch

from dare_bench.seeds import key
from dare_bench.trainers.forwards import Forwards
from dare_bench.trainers.objective import Losses, Metrics, Objective, add_metrics
from dare_bench.trainers.phases import Phases
from dare_bench.trainers.steps import StepShape
from dare_bench.training.rows import Tokens

SEED = key("validation") % 2**32


class Validation:
    """The validation loss of an objective: the mean over batches as large as an optimizer step, of which the last is
    filled up with rows of a second pass. Its forwards are not counted as those of the training."""

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
