"""An optimizer step on a rollout: its copies, and what its loss needs beside them.

Shape letters: A actions.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dare_bench.trainers.objective import Metrics
from dare_bench.trainers.rl.distillation import Distillation
from dare_bench.trainers.rl.estimators import Actions
from dare_bench.trainers.steps import Step


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """What the loss of a step needs beside its copies. ``old_A`` None: the policy itself is the old one.
    ``completion_A`` is the completion of each action, counted in the rollout, ``drawn_A`` log p of its token in the
    distribution that the sampler drew it from; None where actions are not drawn tokens. ``distillation`` is a further
    term of the loss, of ``dtreerpo`` alone."""

    actions: Actions
    completion_A: Tensor
    advantage_A: Tensor
    weight_A: Tensor
    old_A: Tensor | None
    metrics: Metrics
    drawn_A: Tensor | None = None
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
