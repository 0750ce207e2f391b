"""The loss of a step, settled as one weight for each of its scored tokens (see ``objective.py``): before the forwards
of the step, or with the values that they compute themselves.

Shape letters: N scored tokens of a step, M those of a forward.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.errors import TrainingError
from dare_bench.trainers.forwards import Forward
from dare_bench.trainers.objective import Losses, Metrics, Objective
from dare_bench.trainers.reference_policy import ReferenceLosses
from dare_bench.trainers.steps import Step


@dataclass(frozen=True)
class SettledLoss:
    """A step's loss, the weight of each scored token's loss in its gradient, float64 [N], and metrics."""

    weight_N: Tensor
    loss: float
    metrics: Metrics


def settle(objective: Objective, step: Step, nll_N: Tensor, reference: Losses | None) -> SettledLoss:
    """The loss of this process's part of a step, with its derivative at the token losses; raises NotFiniteError if it
    is not finite."""
    nll_N = nll_N.double().requires_grad_()
    with torch.enable_grad():
        loss, metrics = objective.loss(step, nll_N, reference)
        (weight_N,) = torch.autograd.grad(loss, nll_N, allow_unused=True, materialize_grads=True)
    return SettledLoss(weight_N, finite(step, float(loss.detach())), metrics)


class NotFiniteError(TrainingError):
    """A loss or a gradient that is not finite."""


class StepLoss:
    """The loss of a step while its forwards run.

    Args:
        values: -log p of a step's scored tokens under the policy, from a pass without gradients.
        forwards: the number of the step's forwards.
    """

    def __init__(
        self,
        objective: Objective,
        step: Step,
        reference: ReferenceLosses | None,
        values: Callable[[Step], Tensor],
        forwards: int,
    ) -> None:
        self.objective, self.step = objective, step
        self.reference: Losses | None = reference
        self.nll_N = torch.zeros(len(step.copies.at_N))
        """-log p of the tokens of the forwards so far."""
        self.settled: SettledLoss | None = None
        adapter_off = reference is not None and reference.adapter_off
        if not objective.needs_values(step):
            self.settled = self._settle(self.nll_N)
        elif objective.sums_over_copies:
            # Before the forwards: the adapter must not be switched off and on between a forward and its backward.
            if reference is not None:
                known_N = reference(step)
                self.reference = lambda _: known_N
        elif forwards > 1 or adapter_off:
            self.settled = self._settle(values(step))

    def weights(self, forward: Forward, nll_M: Tensor) -> Tensor:
        """The weights of a forward's token losses, float64 [M], from these losses."""
        self.nll_N[forward.index_M] = nll_M.float().cpu()
        settled = self.settled or self._settle(self.nll_N)
        if forward.is_last:
            self.settled = settled
        return settled.weight_N[forward.index_M]

    def _settle(self, nll_N: Tensor) -> SettledLoss:
        return settle(self.objective, self.step, nll_N, self.reference)


def finite(step: Step, value: float, what: str = "the loss") -> float:
    """The value; raises NotFiniteError if it is not finite."""
    if math.isfinite(value):
        return value
    rows = ", ".join(row.where for item in step.items for row in item[:1])
    raise NotFiniteError(
        f"step {step.number + 1}: {what} is {value}; rows of the last batch: {rows}; lower --learning-rate, or check "
        "these rows"
    )
