"""d-TreeRPO (arXiv 2512.09675): local advantages in a tree of completions, and self-distillation that grows with time.

    v_i = log p(y_i | canvas of the parent) for the tokens that went from mask to token between parent and child,
    A = value of the child - mean value of its siblings,    token PPO and KL k3, mean over tokens of a child, children

One masked copy of a parent gives the values of all its children. A segment that is written in several forwards is
scored as if it were written in one; the error falls as the predictions become more confident. Hence the second term,

    lambda(p) mean over parents and positions of KL(q || p(. | canvas of the parent)),    p = step / steps,
    lambda(p) = lambda_max (exp(gamma p) - 1) / (exp(gamma) - 1),    q = softmax(A / tau(p)) over the tokens of the
    children with A > 0,    tau(p) = tau_max (1 - p)^b

Source: sections 3 and 4, and THU-BPM/d-TreeRPO, which takes one parent a step where this takes all. DARE counts
rollouts against a fixed 30,000 of them, and its term sees only siblings that share a micro-batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from dare_bench.errors import UsageError
from dare_bench.protocols import LoadedModel
from dare_bench.trainers.objective import Losses, Metrics
from dare_bench.trainers.rl.algorithm import CAPABILITIES
from dare_bench.trainers.rl.algorithm_options import DTreeRPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, from_parents
from dare_bench.trainers.rl.options import ADAPTER, D1_ROLLOUT
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.surrogate import (
    Distillation,
    RolloutStep,
    Surrogate,
    Update,
    distilled_positions,
    strength,
    surrogate_of,
    targets,
    temperature,
)
from dare_bench.trainers.rl.tree import TreeRollouts, TreeShape
from dare_bench.trainers.steps import Step, StepShape
from dare_bench.training.rows import Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import Request


class DTreeRPO(PolicyGradient):
    """d-TreeRPO."""

    name = "dtreerpo"
    estimator = "the canvas at which siblings branch"
    paper, code = "arXiv 2512.09675", "THU-BPM/d-TreeRPO"
    Options = DTreeRPOOptions
    options: DTreeRPOOptions
    sums_over_copies = fixed_copies = True
    lora_learning_rate = 3e-5
    never_redraws = "a tree grows level by level, and learns wherever siblings differ, also in inner levels"
    capabilities: ClassVar[Mapping[str, str]] = {
        **CAPABILITIES,
        "canvas": "go on from a partly decoded canvas",
        "end_forward": "end an answer after a given forward",
    }
    training_defaults: ClassVar = {
        "adam_beta2": 0.99,
        "weight_decay": 0.1,
        "max_grad_norm": 0.2,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 0.0001,
        **ADAPTER,
    }
    rollouts: ClassVar = {"paper": D1_ROLLOUT}
    variants: ClassVar = {"dare": {"distillation_steps": 360_000}}  # 30,000 rollouts of 12 steps

    @property
    def tree(self) -> TreeShape:
        """The tree of a prompt."""
        o = self.options
        inner = (o.tree_branch_factor,) * (o.tree_contraction_factor - 1)
        return TreeShape((o.num_generations // math.prod(inner), *inner))

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> TreeRollouts:
        return TreeRollouts(self, self.tree, data, shape, seed, process)

    def check(self, spec: TrainSpec, model: LoadedModel, data: Tokens) -> None:
        super().check(spec, model, data)
        if scale := getattr(model.resolve(self.request(())), "cfg_scale", 0):
            raise UsageError(f"rollout cfg_scale={scale:g}: the learner of {self.name} has no guidance; omit it")
        prompt = data.items[0][0].prompt
        turns = model.forwards(Request("0", "generate", prompt, decoding=self.request(prompt)))
        if turns < (levels := len(self.tree.branches)):
            raise UsageError(
                f"tree_contraction_factor={levels}: each level needs a forward of the sampler, and a completion takes "
                f"{turns}; give at most {turns}, or more --rollout steps=N"
            )

    def resolved_options(self, steps: int | None = None) -> BaseModel:
        resolved = super().resolved_options(steps)
        return resolved.model_copy(update={"distillation_steps": self.options.distillation_steps or steps})

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return from_parents(completions, self.spec.mask)

    # -- self-distillation ---------------------------------------------------------------------------------------

    def schedule(self, number: int, steps: int) -> tuple[float, float]:
        """The strength and the temperature of self-distillation in an optimizer step, counted from 0, of a training of
        ``steps``."""
        o = self.options
        p = min(1.0, number / (o.distillation_steps or steps))
        most, first = o.distillation, o.distillation_temperature
        return strength(p, most, o.distillation_growth), temperature(p, first, o.distillation_cooling)

    def step(self, rollout: Rollout, update: Update) -> RolloutStep:
        nodes = update.completions // self.tree.leaves * self.tree.nodes
        step = super().step(rollout, replace(update, completions=nodes))
        surrogate = step.surrogate
        weight, tau = self.schedule(update.number, update.steps)
        copies, advantage_A = surrogate.actions.copies, self._distilled(rollout, surrogate)
        weight_A, log_target_A = targets(copies.at_N, copies.target_N, advantage_A, tau)
        total = rollout.distilled_total
        distillation = Distillation(
            weight_A=weight_A / max(total, 1),
            log_target_A=log_target_A,
            strength=weight if total else 0.0,
        )
        return replace(step, surrogate=replace(surrogate, distillation=distillation))

    def _distilled(self, rollout: Rollout, surrogate: Surrogate) -> Tensor:
        """The advantages of actions, 0 where there is nothing to distill."""
        taught = distilled_positions(rollout.completions, rollout.advantage)
        copies = surrogate.actions.copies
        places = zip(surrogate.completion_A.tolist(), copies.batch.column_T[copies.at_N].tolist(), strict=True)
        records = [(rollout.completions[number], column) for number, column in places]
        taught_A = torch.tensor(
            [(c.parent, column - len(c.prompt)) in taught for c, column in records], dtype=torch.bool
        )
        return torch.where(taught_A, surrogate.advantage_A, 0.0)

    @property
    def always_needs_values(self) -> bool:
        return super().always_needs_values or self.options.distillation > 0

    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        loss, metrics = super().loss(step, nll_N, reference)
        distillation, divergence = _divergence(step, nll_N)
        return loss + distillation.strength * divergence, metrics

    def observe(self, step: Step, nll_N: Tensor) -> Metrics:
        """How far predictions are from the targets; the shares of the processes sum to 1."""
        distillation, divergence = _divergence(step, nll_N)
        share = float(distillation.weight_A.sum())
        return {"distillation": (float(divergence), share)} if share else {}


def _divergence(step: Step, nll_N: Tensor) -> tuple[Distillation, Tensor]:
    """The self-distillation of a step, and this process's part of its divergence."""
    surrogate = surrogate_of(step)
    assert surrogate.distillation is not None
    return surrogate.distillation, surrogate.distillation.divergence(surrogate.actions.logprobs(nll_N))
