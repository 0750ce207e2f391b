"""SPG (arXiv 2510.09541): the log-likelihood is bounded from below where the advantage is positive, else from above.

    loss = - sum over completions of A ell len / sum of len,    ell = ELBO where A > 0, else a bound from above

There is no ratio: each step draws new masks. ``mix`` is mix_weight x upper + (1 - mix_weight) x lower, ``zero`` learns
from positive advantages alone (bounds: ``estimators.py``). They are estimates: with two draws the upper one is below
the lower one in a third of completions; with one, as in DARE, it bounds nothing. Source: section 3 and
facebookresearch/SPG.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dare_bench.trainers.objective import Losses, Metrics
from dare_bench.trainers.rl.algorithm_options import SPGOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, BoundedActions, block_masked
from dare_bench.trainers.rl.options import ADAPTER, D1_ROLLOUT, DARE, DARE_ROLLOUT, SCRIPTS
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.trainers.rl.surrogate import surrogate_of
from dare_bench.trainers.steps import Step


class SPG(PolicyGradient):
    """SPG."""

    name = "spg"
    estimator = "ELBO, or an upper bound, from masks in one block and behind it"
    action = "sequence"
    has_ratio = False
    reads_tokens_only = True
    paper, code = "arXiv 2510.09541", "facebookresearch/SPG"
    Options = SPGOptions
    options: SPGOptions
    training_defaults: ClassVar = {**SCRIPTS, **ADAPTER}
    rollouts: ClassVar = {"paper": D1_ROLLOUT, "dare": DARE_ROLLOUT}
    variants: ClassVar = {"dare": {**DARE, "num_mc": 1}}

    def learns_from(self, completion: Completion, advantage: float) -> bool:
        return advantage > 0 if self.options.negative == "zero" else advantage != 0

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> BoundedActions:
        o = self.options
        return block_masked(completions, self.spec.mask, iteration, o.num_mc, o.mask_block_length, o.p_mask_prompt)

    def step_weights(self, actions: Actions, scored_S: Tensor, completions: int, scored_total: int) -> Tensor:
        """The share of each completion in the tokens of the step."""
        return scored_S[actions.sample_A].double() / scored_total

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return self.options.negative in ("elbo", "zero")

    @property
    def always_needs_values(self) -> bool:
        return not self.linear

    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        surrogate = surrogate_of(step)
        actions = surrogate.actions
        assert isinstance(actions, BoundedActions)
        lower_A = actions.logprobs(nll_N)
        bound_A = torch.where(surrogate.advantage_A > 0, lower_A, self.negative_values(actions, nll_N))
        return -torch.dot(surrogate.advantage_A * bound_A, surrogate.weight_A), dict(surrogate.metrics)

    def negative_values(self, actions: BoundedActions, nll_N: Tensor) -> Tensor:
        """What stands for the log-likelihood of completions without a positive advantage, float64 [A]."""
        o, lower_A = self.options, actions.logprobs(nll_N)
        if o.negative == "zero":
            return torch.zeros_like(lower_A)
        share = {"mix": o.mix_weight, "eubo": 1.0, "elbo": 0.0}[o.negative]
        return lower_A if share == 0 else share * actions.upper(nll_N, o.eubo_beta) + (1 - share) * lower_A
