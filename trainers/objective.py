"""The objective of a training: noise law, weight of each masked token, loss. The loop needs nothing else of a
method."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from torch import Tensor

from dare_bench.diffusion.canvas import response
from dare_bench.diffusion.forward import Inputs, inputs
from dare_bench.diffusion.laws import Law, Noise
from dare_bench.diffusion.looks import Looks
from dare_bench.errors import UsageError
from dare_bench.trainers.steps import Item, NoisedRows, Step, StepShape, StepSource, TrainingRow
from dare_bench.training.rows import TokenRow, Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec

Losses = Callable[[Step], Tensor]
"""-log p of a step's scored tokens under a fixed policy, float32 [N] on the CPU, in nats, without a graph."""

Metrics = Mapping[str, tuple[float, float]]
"""By name, the sum of a value and the number (or weight) of what was summed; their ratio over all processes and steps
is logged. The sum of squares of ``NAME`` is ``NAME_square``; the standard deviation ``NAME_std`` is logged instead.
``NAME_max`` is a largest value with a count of 1; the largest of all is logged."""


def add_metrics(total: dict[str, tuple[float, float]], metrics: Metrics) -> None:
    """Add metrics to those of other steps or processes."""
    for name, (value, count) in metrics.items():
        if name not in total:
            total[name] = value, count
        elif name.endswith("_max"):
            total[name] = max(total[name][0], value), 1.0
        else:
            total[name] = total[name][0] + value, total[name][1] + count


def averages(parts: Sequence[Metrics]) -> dict[str, float]:
    """The values that are logged for the metrics of several processes, which may have different names."""
    sums: dict[str, tuple[float, float]] = {}
    for part in parts:
        add_metrics(sums, part)
    ratio = {name: total / count for name, (total, count) in sorted(sums.items()) if count}
    result = {}
    for name, value in ratio.items():
        base = name.removesuffix("_square")
        if base == name or base not in ratio:
            result[name] = value
        else:
            result[f"{base}_std"] = math.sqrt(max(value - ratio[base] ** 2, 0.0))
    return result


class Objective(ABC):
    """The objective of a training method for one model. Subclasses define ``law``, ``weigh`` and ``loss``; one that
    needs another policy's losses (a reference) sets ``wants_reference``.

    The loop settles a step's loss as one weight for each scored token, the derivative of ``loss``, and then minimizes
    the weighted sum of token losses, divided into forwards in any way. The values that ``loss`` needs come from a pass
    without gradients; a ``linear`` loss needs none.

    Args:
        options: the method's settings (:class:`dare_bench.trainers.method.Options`).
        spec: the model's ids, attention and context limit.
        canvas: length in tokens of the responses of the data; None: unknown.
    """

    training_defaults: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the method for settings of a training (see ``TrainSpec``): schedule, weight decay, ..."""
    learning_rate: ClassVar[float] = 1e-5
    lora_learning_rate: ClassVar[float] = 1e-4
    wants_reference: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    """Is the loss linear in the token losses, so that its weights do not depend on their values?"""

    def __init__(self, options: Any, spec: ModelSpec, canvas: int | None) -> None:
        self.options, self.spec, self.canvas = options, spec, canvas

    @property
    @abstractmethod
    def law(self) -> Law:
        """The noise law."""

    @abstractmethod
    def weigh(self, noise: Noise) -> Tensor:
        """The loss weight of each token of a whole step's copies, float64 [T]; 0 where it is not masked."""

    @abstractmethod
    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        """This process's part of the step's loss (the parts are summed) as a differentiable function of the token
        losses, and metrics.

        Args:
            nll_N: -log p of the scored tokens under the policy, float64 on the CPU; zeros for a ``linear`` loss.
            reference: the reference policy's losses, if the method wants one.
        """

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

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> StepSource:
        """The steps of a training on ``data``; raises UsageError."""
        return NoisedRows(
            self.items(data), self.law, self.weigh, self.spec.mask, shape, seed, process, self.fresh_noise
        )

    def check_sizes(self, spec: TrainSpec, data: Tokens, processes: int) -> None:
        """Raise UsageError unless the settings, with their defaults, make whole optimizer steps of the data."""
        self.source(data, StepShape(spec.rows_per_forward, spec.gradient_accumulation_steps, processes), spec.seed)

    def callbacks(self) -> list[Any]:
        """Callbacks of ``transformers.Trainer`` for a training with this objective."""
        return []

    def inputs(self, looks: Looks) -> Inputs:
        """The input of the network."""
        return inputs(looks, self.spec, self.block_length)

    @property
    def block_length(self) -> int | None:
        """Block length of block-causal attention in training; None: the model's."""
        return getattr(self.options, "block_length", None)

    @property
    def fresh_noise(self) -> bool:
        """Is noise drawn anew in each epoch?"""
        return True

    @property
    def reference(self) -> str | None:
        """The checkpoint of the reference; None: the starting checkpoint."""
        return None

    @property
    def uses_of_item(self) -> int:
        """How often an epoch trains on an item of the data."""
        return 1

    def lengths(self, data: Tokens) -> list[int]:
        """Tokens of each row, as trained on."""
        return [len(row.prompt) + len(row.response) for item in self.items(data) for row in item]

    def items(self, data: Tokens) -> list[Item]:
        """Training rows with their supervised EOS tokens.

        Raises:
            UsageError: a missing canvas length, or a canvas beyond the model's context.
        """
        o = self.options
        unknown = o.canvas_length is None and self.canvas is None and self.spec.block_length is None
        if o.padding == "eos_supervised" and unknown and o.max_pads != 0:
            raise UsageError("padding='eos_supervised' needs the length of the canvas; give canvas_length")
        return [tuple(self._row(row) for row in rows) for rows in data.items]

    def _row(self, row: TokenRow) -> TrainingRow:
        if row.cut:
            return TrainingRow(row.prompt, row.answer, row.key, row.where)
        if (canvas := self.options.canvas_length) is not None and len(row.prompt) + canvas > self.spec.context_limit:
            fits = self.spec.context_limit - len(row.prompt)
            raise UsageError(
                f"canvas_length={canvas} after {row.where} (a prompt of {len(row.prompt)} tokens) is beyond the "
                f"model's context of {self.spec.context_limit}; give at most {fits}"
            )
        length, padding, most = self.options.room(len(row.prompt), len(row.answer), self.canvas, self.spec.block_length)
        length = max(len(row.answer) + 1, min(length, self.spec.context_limit - len(row.prompt)))
        eos = self.spec.eos_ids[0] if self.spec.eos_ids else self.spec.pad_id
        if eos is None:
            raise UsageError("this checkpoint has no EOS id to end answers with; give --model-args eos_id=")
        answer = response(row.answer, length, eos, padding, most)
        return TrainingRow(row.prompt, tuple(answer), row.key, row.where)
