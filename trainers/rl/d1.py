"""d1's diffu-GRPO (arXiv 2504.12216): one forward with the whole completion masked and prompt tokens masked at random.

    v_i = log p(y_i | masked prompt, all of y masked),    token PPO, KL k3, mean over a completion's tokens

Source: section 3.2 and dllm-reasoning/d1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from dare_bench.trainers.rl.algorithm_options import D1Options
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, fully_masked
from dare_bench.trainers.rl.options import (
    ADAPTER,
    D1_ROLLOUT,
    DARE_RATIO,
    DARE_ROLLOUT,
    SCRIPTS,
)
from dare_bench.trainers.rl.policy_gradient import PolicyGradient


class D1(PolicyGradient):
    """diffu-GRPO."""

    name = "d1"
    estimator = "all of the completion masked, prompt tokens masked at random"
    reads_tokens_only = True
    paper, code = "arXiv 2504.12216", "dllm-reasoning/d1"
    Options = D1Options
    options: D1Options
    sums_over_copies = True
    training_defaults: ClassVar = {**SCRIPTS, **ADAPTER}
    rollouts: ClassVar = {"paper": D1_ROLLOUT, "dare": DARE_ROLLOUT}
    variants: ClassVar = {"dare": {**DARE_RATIO, "aggregation": "token"}}

    @property
    def fixed_copies(self) -> bool:  # type: ignore[override]
        return self.options.p_mask_prompt == 0

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return fully_masked(completions, self.spec.mask, iteration, self.options.p_mask_prompt)
