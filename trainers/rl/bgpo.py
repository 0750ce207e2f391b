"""BGPO (arXiv 2510.11683): a lower bound of the sequence objective that is linear in the draws of the ELBO.

    d_j = (ELBO_j - old ELBO_j) / L,    ratio of draw j = 1 + d_j where A >= 0, exp(d_j) where A < 0

Each of ``num_mc`` masks is an action with a clipped ratio, the loss their mean: any number of draws has the
memory of one. At ratio 1 the bound and its gradient equal the objective's. Source: section 4 and THU-KEG/BGPO. DARE
computes 1 + d as exp(log(1 + d)), which is not a number for d <= -1; its variant here does not reproduce that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from dare_bench.trainers.rl.algorithm_options import BGPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, elbo
from dare_bench.trainers.rl.options import DARE_ROLLOUT, DARE_TRAINING, PublishedRollout
from dare_bench.trainers.rl.policy_gradient import PolicyGradient, counts_of
from dare_bench.trainers.rl.surrogate import linearized


class BGPO(PolicyGradient):
    """BGPO."""

    name = "bgpo"
    estimator = "each draw of the ELBO, with a linear bound of its ratio"
    action = "draw"
    reads_tokens_only = True
    paper, code = "arXiv 2510.11683", "THU-KEG/BGPO"
    Options = BGPOOptions
    options: BGPOOptions
    sums_over_copies = True
    families = "any"
    learning_rate = lora_learning_rate = 5e-7
    training_defaults: ClassVar = DARE_TRAINING
    rollouts: ClassVar = {"paper": PublishedRollout(1 / 2, 32), "dare": DARE_ROLLOUT}
    variants: ClassVar = {"dare": {"dual_clip": 3.0}}

    @property
    def actions_each(self) -> int:
        return self.options.num_mc

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        schedule = counts_of(self.spec, self.options.num_mc)
        return elbo(completions, self.spec.mask, iteration, schedule, per_draw=True)

    def action_losses(self, log_ratio_A: Tensor, advantage_A: Tensor) -> tuple[Tensor, Tensor]:
        return linearized(log_ratio_A, advantage_A, *self.clip)
