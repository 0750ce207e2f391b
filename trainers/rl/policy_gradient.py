"""Policy gradients on estimated log-probabilities: the loss that all algorithms share, and their settings.

    loss = sum over actions a of w_a [max(-A rho_a, -A clip(rho_a)) + beta KL_a],    rho_a = exp(v_a - old v_a)

v_a is an estimator's log-probability of an action (``estimators.py``), A the advantage of its completion, w_a the
aggregation. In a rollout's first step the old policy is the policy: rho = 1, and the gradient is REINFORCE's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dare_bench.diffusion.forward import Inputs
from dare_bench.diffusion.masked_copies import MaskedCopies
from dare_bench.diffusion.schedules import NoiseSchedule
from dare_bench.errors import TrainingError, UsageError
from dare_bench.protocols import LoadedModel, Services
from dare_bench.seeds import key
from dare_bench.trainers.objective import Losses, Metrics
from dare_bench.trainers.reference_policy import ReferenceSync
from dare_bench.trainers.rl.algorithm import Algorithm
from dare_bench.trainers.rl.collapse import CollapseWarning, warn_of_large_updates
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions
from dare_bench.trainers.rl.options import RatioOptions, RLOptions
from dare_bench.trainers.rl.requirements import check_method, check_rollout, log_rollout
from dare_bench.trainers.rl.rollout import Rollouts
from dare_bench.trainers.rl.rollout_file import Rollout
from dare_bench.trainers.rl.served import check_engine, check_request
from dare_bench.trainers.rl.surrogate import (
    Divergence,
    RolloutStep,
    Surrogate,
    Update,
    action_weights,
    clip_metrics,
    clipped,
    divergence,
    gap_metrics,
    importance,
    sampler_logprobs,
    surrogate_of,
)
from dare_bench.trainers.steps import Step, StepShape
from dare_bench.training.processes import data_parallel_size
from dare_bench.training.rows import TokenRow, Tokens
from dare_bench.training.spec import TrainSpec
from dare_bench.types import ModelSpec


class PolicyGradient(Algorithm):
    """The base of every algorithm. Subclasses define ``actions``, and declare the attributes that differ (see
    docs/rl.md)."""

    kl: ClassVar[Divergence] = "k3"
    estimator: ClassVar[str]
    """What is scored, in a few words."""
    action: ClassVar[str] = "token"
    """What a ratio is computed of: ``token``, ``sequence``, or ``draw``."""
    paper: ClassVar[str]
    code: ClassVar[str]
    """The published repository."""

    def __init__(self, options: RLOptions, spec: ModelSpec, canvas: int | None) -> None:
        super().__init__(options, spec, canvas)
        self.ratio = options if isinstance(options, RatioOptions) else RatioOptions.model_validate({})
        self.beta, self.importance_cap = self.ratio.beta, self.ratio.importance_cap
        self.wants_reference = self.beta > 0  # type: ignore[misc]
        check_method(self, spec)
        if options.rollout_engine is not None:
            check_request(self, spec)
        if self.has_ratio and self.ratio.sync_ref_model:
            self.reference_sync = ReferenceSync(self.ratio.ref_model_sync_steps, self.ratio.ref_model_mixup_alpha)

    # -- declared by algorithms ----------------------------------------------------------------------------------

    @abstractmethod
    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        """The actions of completions in an inner iteration. ``shared_key``: the key of random numbers that all
        completions of the rollout share, in all processes."""

    @property
    def actions_each(self) -> int:
        """Actions of a completion that are not tokens."""
        return 1

    def learns_from(self, completion: Completion, advantage: float) -> bool:
        """Has a completion with this advantage a gradient, apart from the KL penalty?"""
        return advantage != 0

    def loss_weights(self, weight_A: Tensor, old_A: Tensor) -> Tensor:
        """The weight of each action's loss, from its weight in the mean and its value under the policy that sampled."""
        return weight_A

    def kl_of(self, log_ratio_A: Tensor, surrogate: Surrogate) -> Tensor:
        """The KL penalty of each action, from log policy - log reference."""
        return divergence(log_ratio_A, self.kl)

    def step_weights(self, actions: Actions, scored_S: Tensor, completions: int, scored_total: int) -> Tensor:
        """The weight of each action's loss in the loss of a step, float64 [A]. ``scored_S``: the tokens that count in
        each completion of ``actions``; ``completions``, ``scored_total``: those in all processes."""
        count = scored_total if self.action == "token" else completions * self.actions_each
        length = self.completion_length
        return action_weights(
            self.ratio.aggregation, actions.sample_A, actions.transition_A, completions, count, length
        )

    def action_losses(self, log_ratio_A: Tensor, advantage_A: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each action, from log policy - log old policy, and where a clip has taken its gradient."""
        return clipped(log_ratio_A, advantage_A, *self.clip)

    @property
    def clip(self) -> tuple[float, float, float | None]:
        """The clip range below and above 1, and the bound for negative advantages."""
        o = self.ratio
        return o.epsilon, o.epsilon if o.epsilon_high is None else o.epsilon_high, o.dual_clip

    # -- rollout -------------------------------------------------------------------------------------------------

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> Rollouts:
        return Rollouts(self, data, shape, seed, process)

    def check(self, spec: TrainSpec, model: LoadedModel, data: Tokens) -> None:
        if self.reference_sync is not None and (spec.peft is not None or spec.adapter is not None):
            raise UsageError(
                "sync_ref_model moves the reference's weights towards the policy's, and with LoRA the reference has no "
                "weights of its own: it is the network with its adapter off; omit it, or train without --peft"
            )
        self.check_sizes(spec, data, data_parallel_size(spec.sequence_parallel_size))
        if self.engine is not None:
            check_engine(self, self.engine, model.spec, data)
        elif self.options.rollout_engine is None:  # an engine that is named and not opened has finished its training
            check_rollout(self, model, data)
        log_rollout(self)
        warn_of_large_updates(self, spec)

    def replay(
        self, spec: TrainSpec, model: LoadedModel, data: Tokens, out: Path, services: Services, step: int, batch: int
    ) -> Any:
        """Make a step's rollout again (see :func:`dare_bench.trainers.rl.replay.replay`)."""
        from dare_bench.trainers.rl.replay import replay

        return replay(self, spec, model, data, out, services, step, batch)

    def callbacks(self) -> list[Any]:
        return [CollapseWarning(), *([self.reference_sync] if self.reference_sync is not None else [])]

    # -- loss ----------------------------------------------------------------------------------------------------

    def step(self, rollout: Rollout, update: Update) -> RolloutStep:
        """This process's part of an optimizer step on a rollout. Completions without an advantage have no gradient, so
        that without a KL penalty nothing is computed for them."""
        iteration, shared_key = update.iteration, shared_key_of(update.seed, rollout.number)
        advantage_S = torch.tensor(rollout.advantage, dtype=torch.float64)
        pairs = zip(rollout.completions, rollout.advantage, strict=True)
        kept = [i for i, (c, a) in enumerate(pairs) if self.beta or self.learns_from(c, a)]
        actions = self.actions([rollout.completions[i] for i in kept] or rollout.completions[:1], iteration, shared_key)
        if self.sums_over_copies and not actions.within_copies:
            raise TrainingError(f"{self.name} is declared sums_over_copies, and an action has tokens of several copies")
        kept_S = torch.tensor(kept or [0])
        scored_S = torch.tensor([rollout.completions[i].scored for i in kept_S.tolist()])
        weight_A = self.step_weights(actions, scored_S, update.completions, rollout.scored_total)
        completion_A, old_A = kept_S[actions.sample_A], None
        advantage_A = advantage_S[completion_A] if actions.advantage_A is None else actions.advantage_A
        if iteration and len(rollout.old) >= iteration:
            old = [value for i in kept for value in rollout.old[iteration - 1][i]]
            if kept and len(old) != len(completion_A):
                raise TrainingError(
                    f"step {update.number + 1}: its rollout has {len(old)} old values of {len(completion_A)} actions, "
                    "as in a damaged rollout.json; remove that checkpoint to resume from the previous one"
                )
            old_A = torch.zeros(len(completion_A), dtype=torch.float64)
            if kept:  # otherwise the actions are those of a completion without an advantage: any value is right
                old_A[completion_A.argsort(stable=True)] = torch.tensor(old, dtype=torch.float64)
        metrics = rollout.metrics if iteration == 0 else {}
        drawn_A = sampler_logprobs(actions, rollout.completions, completion_A) if self.scores_draws else None
        surrogate = Surrogate(
            actions=actions,
            completion_A=completion_A,
            advantage_A=advantage_A,
            weight_A=weight_A,
            old_A=old_A,
            metrics=metrics,
            drawn_A=drawn_A,
        )
        rows = [TokenRow(c.prompt, c.tokens, c.where, c.key) for c in rollout.completions]
        return RolloutStep(
            number=update.number,
            items=tuple((rows[i],) for i in kept_S.tolist()),
            keys=tuple(rows[i].key for i in kept_S.tolist()),
            copies=actions.copies,
            item_R=actions.sample_R,
            role_R=torch.zeros_like(actions.sample_R),
            weight_N=actions.coefficient_N,
            step_items=update.completions,
            surrogate=surrogate,
        )

    def action_logprobs(self, rollout: Rollout, step: RolloutStep, nll_N: Tensor) -> list[list[float]]:
        completion_A, value_A = step.surrogate.completion_A, step.surrogate.actions.logprobs(nll_N)
        counts = torch.bincount(completion_A, minlength=len(rollout.completions)).tolist()
        return [values.tolist() for values in value_A[completion_A.argsort(stable=True)].split(counts)]

    @property
    def always_needs_values(self) -> bool:
        """Does the loss of each step depend on the policy's values, also of the first one on a rollout?"""
        return self.beta > 0 or self.importance_cap is not None

    def needs_values(self, step: Step) -> bool:
        return surrogate_of(step).old_A is not None or self.always_needs_values

    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        surrogate = surrogate_of(step)
        value_A = surrogate.actions.logprobs(nll_N)
        old_A = value_A.detach() if surrogate.old_A is None else surrogate.old_A
        advantage_A, metrics = surrogate.advantage_A, dict(surrogate.metrics)
        if self.importance_cap is not None:
            assert surrogate.drawn_A is not None  # rollouts need the capability ``logprobs``
            importance_A, metrics["importance_capped"] = importance(old_A, surrogate.drawn_A, self.importance_cap)
            advantage_A = advantage_A * importance_A
        log_ratio_A = value_A - old_A
        loss_A, active_A = self.action_losses(log_ratio_A, advantage_A)
        learns_A = advantage_A != 0  # the others are there for the KL penalty, if there is one
        metrics |= clip_metrics(log_ratio_A.detach()[learns_A], active_A[learns_A], ratios=surrogate.old_A is not None)
        if reference is not None:
            kl_A = self.kl_of(value_A - surrogate.actions.logprobs(reference(step)), surrogate)
            loss_A = loss_A + self.beta * kl_A
            metrics["kl"] = float((kl_A.detach() * surrogate.weight_A).sum()), float(surrogate.weight_A.sum())
        return torch.dot(loss_A, self.loss_weights(surrogate.weight_A, old_A)), metrics

    def observe(self, step: Step, nll_N: Tensor) -> Metrics:
        """The gap between sampler and learner, in the step in which the learner is the policy that sampled."""
        surrogate = surrogate_of(step)
        if surrogate.drawn_A is None or surrogate.old_A is not None:
            return {}
        return gap_metrics(surrogate.actions.logprobs(nll_N), surrogate.drawn_A)

    def inputs(self, copies: MaskedCopies) -> Inputs:
        given = super().inputs(copies)
        return replace(given, temperature=self.options.temperature) if self.scores_draws else given


def counts_of(spec: ModelSpec, draws: int) -> NoiseSchedule:
    """The noise schedule of an ELBO: exactly k masks in every block of a block-causal model, else in the whole
    canvas."""
    return NoiseSchedule("counts" if spec.block_length is None else "blocks", draws, block_length=spec.block_length)


def shared_key_of(seed: int, rollout: int) -> int:
    """The key of random numbers that all completions of a rollout share."""
    return key("level", seed, rollout)
