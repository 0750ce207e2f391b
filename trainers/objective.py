"""The objective of a training: where its steps come from, and their loss. The loop needs nothing else of a method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from dare_bench.diffusion.forward import Inputs, inputs
from dare_bench.diffusion.masked_copies import MaskedCopies
from dare_bench.trainers.steps import Step, StepShape, StepSource
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec

Losses = Callable[[Step], Tensor]
"""-log p of a step's scored tokens under a fixed policy, float32 [N] on the CPU, in nats, without a graph."""

Metrics = Mapping[str, tuple[float, float]]
"""By name, the sum of a value and the number (or weight) of what was summed; their ratio over all processes and steps
is logged. The sum of squares of ``NAME`` is ``NAME_square``; the standard deviation ``NAME_std`` is logged instead.
``NAME_max`` is a largest value with a count of 1, ``NAME_min`` a smallest one; that of all is logged."""


def add_metrics(total: dict[str, tuple[float, float]], metrics: Metrics) -> None:
    """Add metrics to those of other steps or processes."""
    for name, (value, count) in metrics.items():
        if name not in total:
            total[name] = value, count
        elif name.endswith(("_max", "_min")):
            extreme = max if name.endswith("_max") else min
            total[name] = extreme(total[name][0], value), 1.0
        else:
            total[name] = total[name][0] + value, total[name][1] + count


def summed(parts: Sequence[Metrics]) -> dict[str, tuple[float, float]]:
    """The metrics of several processes, which may have different names, together."""
    sums: dict[str, tuple[float, float]] = {}
    for part in parts:
        add_metrics(sums, part)
    return sums


def averages(parts: Sequence[Metrics]) -> dict[str, float]:
    """The values that are logged for the metrics of several processes."""
    ratio = {name: total / count for name, (total, count) in sorted(summed(parts).items()) if count}
    result = {}
    for name, value in ratio.items():
        base = name.removesuffix("_square")
        if base == name or base not in ratio:
            result[name] = value
        else:
            result[f"{base}_std"] = math.sqrt(max(value - ratio[base] ** 2, 0.0))
    return result


def mean_loss(log: Sequence[Mapping[str, Any]]) -> float:
    """The mean loss of all steps of a training whose last step is in its log."""
    total, last = 0.0, 0
    for entry in log:
        if "loss" in entry:
            total, last = total + entry["loss"] * (entry["step"] - last), entry["step"]
    return total / max(last, 1)


class Objective(ABC):
    """The objective of a training method for one model. Subclasses define ``source``, ``lengths`` and ``loss``; one
    that needs a reference policy's losses sets ``wants_reference``.

    The loop settles a step's loss as one weight for each scored token, the derivative of ``loss``. The values that
    ``loss`` needs come from a pass without gradients; a ``linear`` loss needs none, and one that is
    ``sums_over_copies`` those of each forward alone. ``options``: the method's settings; ``spec``: the model's ids,
    attention and context limit; ``canvas``: length in tokens of the responses of the data; None: unknown.
    """

    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the method for settings of a training (see ``TrainSpec``): schedule, weight decay, ..."""
    learning_rate: ClassVar[float] = 1e-5
    lora_learning_rate: ClassVar[float] = 1e-4
    wants_reference: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    """Is the loss linear in the token losses, so that its weights do not depend on their values?"""
    sums_over_copies: ClassVar[bool] = False
    """Is the loss a sum of terms that each read the token losses of one copy? The weights of a forward then follow from
    its own token losses, however a step is divided. Such a loss reads a reference at the step itself only."""

    def __init__(self, options: Any, spec: ModelSpec, canvas: int | None) -> None:
        self.options, self.spec, self.canvas = options, spec, canvas

    @abstractmethod
    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> StepSource:
        """The steps of a training on ``data``; raises UsageError."""

    @abstractmethod
    def lengths(self, data: Tokens) -> list[int]:
        """Tokens of rows as trained on; of rows whose length is drawn, of several draws."""

    @abstractmethod
    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        """This process's part of the step's loss (the parts are summed) as a differentiable function of the token
        losses, and metrics. ``nll_N``: -log p of the scored tokens under the policy, float64 on the CPU; zeros for a
        ``linear`` loss; ``reference``: the reference policy's losses, if the method wants one."""

    @classmethod
    def default_batch(cls, options: Mapping[str, Any]) -> int:
        """Items of a forward on one device, if the user gives no number; ``options`` as the user gave them."""
        return 8

    def needs_values(self, step: Step) -> bool:
        """Does ``loss`` read the values of the token losses?"""
        return not self.linear

    def observe(self, step: Step, nll_N: Tensor) -> Metrics:
        """Metrics of the token losses that the update of a step has computed (float32 on the CPU, without a graph)."""
        return {}

    def check_sizes(self, spec: TrainSpec, data: Tokens, processes: int) -> None:
        """Raise UsageError unless the settings, with their defaults, make whole optimizer steps of the data."""
        self.source(data, StepShape(spec.rows_per_forward, spec.gradient_accumulation_steps, processes), spec.seed)

    def callbacks(self) -> list[Any]:
        """Callbacks of ``transformers.Trainer`` for a training with this objective."""
        return []

    def inputs(self, copies: MaskedCopies) -> Inputs:
        """The input of the network."""
        return inputs(copies, self.spec, self.block_length)

    @property
    def block_length(self) -> int | None:
        """Block length of block-causal attention in training; None: the model's."""
        return getattr(self.options, "block_length", None)

    @property
    def fresh_noise(self) -> bool:
        """Is noise drawn anew in each epoch?"""
        return getattr(self.options, "fresh_noise", True)

    @property
    def reference(self) -> str | None:
        """The checkpoint of the reference; None: the starting checkpoint."""
        return getattr(self.options, "reference", None)

    @property
    def uses_of_item(self) -> int:
        """How often an epoch trains on an item of the data."""
        return 1
