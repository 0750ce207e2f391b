"""An optimizer step on a rollout: its looks, and what its loss needs beside them.

Shape letters: U units.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.rl.distillation import Distillation
from dare_bench.trainers.rl.estimators import Units
from dare_bench.trainers.steps import Step


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What the loss of a step needs beside its looks. ``old_U`` None: the policy itself is the old one.
    ``completion_U`` is the completion of each unit, counted in the rollout, ``drawn_U`` log p of its token in the
    distribution that the sampler drew it from; None where units are not drawn tokens. ``distillation`` is a further
    term of the loss, of ``dtreerpo`` alone."""

    units: Units
    completion_U: Tensor
    advantage_U: Tensor
    weight_U: Tensor
    old_U: Tensor | None
    metrics: Metrics
    drawn_U: Tensor | None = None
    distillation: Distillation | None = None


@dataclass(frozen=True, kw_only=True)
class RolloutStep(Step):
    """The part of an optimizer step that one process computes on a rollout."""

    surrogate: Surrogate


@dataclass(frozen=True, kw_only=True)
class Update:
    """An optimizer step on a rollout: step ``number`` (from 0) of the ``steps`` of a training with ``seed``, and inner
    iteration ``iteration`` (from 0) of its rollout. ``completions`` is their number in all processes."""

    number: int
    iteration: int
    completions: int
    seed: int
    steps: int


def surrogate_of(step: Step) -> Surrogate:
    """What the loss of a step on a rollout needs."""
    assert isinstance(step, RolloutStep)
    return step.surrogate
