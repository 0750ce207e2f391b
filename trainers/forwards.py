"""The forwards of an optimizer step: its division into them, the token losses that each computes, and the weight of
each in the loss of the step, settled for the whole step. Neither loss nor gradient depends on the division.

Shape letters: N scored tokens of a step, M those of a forward.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.masked_copies import MaskedCopies, masked_copies, pack
from dare_bench.diffusion.sequence_parallel import SequenceGroup
from dare_bench.errors import TrainingError
from dare_bench.seeds import key
from dare_bench.trainers.objective import Losses, Metrics, Objective
from dare_bench.trainers.phases import PhaseCost, Phases
from dare_bench.trainers.reference_policy import ReferenceLosses
from dare_bench.trainers.steps import Step, balanced_parts
from dare_bench.training.spec import TrainSpec


@dataclass(frozen=True)
class Forward:
    """One forward of a step: its number, its copies, and the indices of their scored tokens, int64 [M]."""

    step: Step
    number: int
    copies: MaskedCopies
    index_M: Tensor
    is_last: bool


class Forwards:
    """The forwards of a training. ``sequence``: the processes that compute the same rows together; None: each has other
    rows."""

    def __init__(
        self, objective: Objective, spec: TrainSpec, accelerator: Any, phases: Phases, sequence: SequenceGroup | None
    ) -> None:
        self.objective, self.spec, self.accelerator = objective, spec, accelerator
        self.phases, self.sequence = phases, sequence

    def of(self, step: Step) -> list[Forward]:
        """The forwards of a step, as many in every process."""
        count, limit = self.spec.gradient_accumulation_steps, self.spec.micro_batch_size
        if limit is not None:
            count = max(count, math.ceil(len(step.copies) / limit))
            if self.accelerator.num_processes > 1:
                count = int(self.accelerator.gather(torch.tensor([count], device=self.accelerator.device)).max())
        parts = enumerate(divide(step.copies, count), 1)
        return [Forward(step, number, copies, index_M, number == count) for number, (copies, index_M) in parts]

    def token_losses(self, network: Any, forward: Forward, cost: PhaseCost) -> Tensor:
        """-log p of the scored tokens of a forward, [M], with a graph if gradients are enabled."""
        given = self.objective.inputs(forward.copies).to(self.accelerator.device)
        given = replace(given, plan=replace(given.plan, sequence=self.sequence))
        cost.tokens += len(given.tokens_U)
        with self._dropout(forward):
            nll_M: Tensor = network(**given.arguments()).nll
        return nll_M

    @torch.no_grad()
    def values(self, network: Any, step: Step) -> Tensor:
        """-log p of a step's scored tokens under a network, float32 [N] on the CPU."""
        nll_N = torch.empty(len(step.copies.at_N))
        with self.phases.measure("score") as cost:
            cost.forwards += len(step.copies)
            for forward in self.of(step):
                with self.accelerator.autocast():
                    nll_N[forward.index_M] = self.token_losses(network, forward, cost).float().cpu()
        return nll_N

    @contextlib.contextmanager
    def _dropout(self, forward: Forward) -> Iterator[None]:
        """The same dropout in every pass over a forward's copies. (A layer that is computed again in the backward, to
        save memory, restores the state of its first pass.)"""
        if not self.spec.lora_dropout:
            yield
            return
        place = forward.step.number, self.accelerator.process_index, forward.number - 1
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(key("dropout", self.spec.seed, *place))
            yield


def divide(copies: MaskedCopies, count: int) -> list[tuple[MaskedCopies, Tensor]]:
    """Divide copies into ``count`` forwards of similar size; one without any copy has a single token to read and
    nothing to score, since under FSDP and DDP all processes take part. Returns, of each, its copies sorted by length,
    longest first (rows of equal length attend as one batch), and the indices of its scored tokens, int64."""
    lengths = copies.batch.lengths
    parts = [sorted(part, key=lambda r: -lengths[r]) for part in balanced_parts(lengths, count)]
    return [copies.take(part) if part else (_nothing(), torch.zeros(0, dtype=torch.long)) for part in parts]


def _nothing() -> MaskedCopies:
    batch = pack([((), (0,))])
    return masked_copies(batch, torch.zeros(1, dtype=torch.bool), 0)


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
    """The loss of a step while its forwards run. ``values``: -log p of a step's scored tokens under the policy, from a
    pass without gradients; ``forwards``: the number of the step's forwards."""

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
