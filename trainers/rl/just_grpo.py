"""JustGRPO (arXiv 2601.15165): answers are sampled left to right, so that their probability is exact.

    v_t = log p(y_t | prompt, y before t, masks from t on),    token PPO, mean over the tokens of a completion

The sampler writes one token a forward in the order of the text, and the learner looks at the same canvases. All tokens
of the canvas are scored. Source: section 3 and LeapLabTHU/JustGRPO at eebe50e, which keeps the ratio at 1 and divides
the loss by the number of completions with an advantage; the mean here is over all completions. A group is
``num_generations`` x ``repeat_times`` = 16 there (train.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dare_bench.trainers.rl.algorithm_options import JustGRPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, trajectory
from dare_bench.trainers.rl.policy_gradient import PolicyGradient


class JustGRPO(PolicyGradient):
    """JustGRPO."""

    name = "just_grpo"
    estimator = "left to right, the canvas before each token"
    paper, code = "arXiv 2601.15165", "LeapLabTHU/JustGRPO"
    Options = JustGRPOOptions
    options: JustGRPOOptions
    sums_over_copies = fixed_copies = True
    families = "any"
    scores_draws = True
    learning_rate = lora_learning_rate = 5e-6
    training_defaults: ClassVar = {
        "adam_beta2": 0.999,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "constant",
    }
    variants: ClassVar = {"dare": {"num_generations": 8, "temperature": 0.6, "dual_clip": 3.0, "aggregation": "token"}}

    @property
    def rollout_fields(self) -> dict[str, Any]:
        return {"strategy": "sequential"}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return trajectory(completions, self.spec.mask, self.spec.block_length)
