"""coupled-GRPO (DiffuCoder, arXiv 2506.20639): the full mask, a random mask and its complement.

Every token is predicted once by the pair, and once from the full mask (equation 6); ``estimators.coupled`` has the
formula. It is not a log-probability: without context its expectation is 1.5 log p, and ``normalized`` divides by that.
Source: section 4 and apple/ml-diffucoder at f735e01 (recipes/config_coupled_code.yaml). In DARE the mask level is
always 0.5837, since it seeds the global generator in each call; its variant here does not reproduce that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dare_bench.trainers.rl.algorithm_options import CoupledGRPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, coupled
from dare_bench.trainers.rl.options import DARE_RATIO, DARE_ROLLOUT, SCRIPTS, PublishedRollout
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.training.spec import WITH_FLOOR


class CoupledGRPO(PolicyGradient):
    """coupled-GRPO."""

    name = "coupled_grpo"
    estimator = "all masked; a random mask and its complement"
    reads_tokens_only = True
    paper, code = "arXiv 2506.20639", "apple/ml-diffucoder"
    Options = CoupledGRPOOptions
    options: CoupledGRPOOptions
    learning_rate = lora_learning_rate = 1e-6
    training_defaults: ClassVar = {**SCRIPTS, "lr_scheduler_type": WITH_FLOOR}
    rollouts: ClassVar = {
        "paper": PublishedRollout(1, fields={"dream": {"top_p": 0.95}}),
        "dare": DARE_ROLLOUT,
    }
    variants: ClassVar = {"dare": {**DARE_RATIO, "aggregation": "token"}}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        o = self.options
        return coupled(completions, self.spec.mask, iteration, shared_key, o.level, o.normalized)
