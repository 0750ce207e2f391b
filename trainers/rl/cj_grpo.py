"""CJ-GRPO (arXiv 2509.23924): replay of the sampler's trajectory.

    v_i = log p(y_i | the canvas before the forward that wrote i),    PPO and KL k3 for each token, averaged over the
    tokens of a forward, the forwards of a completion, and completions (equation 11)

The canvases are those that the sampler visited, so the sum over a completion is the exact log-probability of its
written tokens, given the order. If the sampler chooses positions without looking at the tokens that it drew, the
gradient is exact if all tokens are scored. In the order of confidence it is not, since discarded draws decide which
position is written (docs/algorithms.md). Source: section 3 and yjyddq/EOSER-ASS-RL. EOSER and ASS are strategies of the
sampler: ``--rollout strategy=...``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from dare_bench.trainers.rl.algorithm_options import CJGRPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, trajectory
from dare_bench.trainers.rl.options import (
    ADAPTER,
    DARE_RATIO,
    DARE_ROLLOUT,
    SCRIPTS,
    PublishedRollout,
)
from dare_bench.trainers.rl.policy_gradient import PolicyGradient


class CJGRPO(PolicyGradient):
    """CJ-GRPO."""

    name = "cj_grpo"
    estimator = "the canvas before each forward of the sampler"
    paper, code = "arXiv 2509.23924", "yjyddq/EOSER-ASS-RL"
    Options = CJGRPOOptions
    options: CJGRPOOptions
    sums_over_copies = fixed_copies = True
    families = "any"
    scores_draws = True
    training_defaults: ClassVar = {**SCRIPTS, **ADAPTER}
    rollouts: ClassVar = {
        "paper": PublishedRollout(1 / 2, 128),
        "dare": replace(
            DARE_ROLLOUT,
            fields={
                **DARE_ROLLOUT.fields,
                "sdar": {"top_k": 50, "confidence_threshold": 0.95},
                "llada2": {"top_k": 50, "top_p": 0.95},
            },
        ),
    }
    variants: ClassVar = {"dare": DARE_RATIO}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return trajectory(completions, self.spec.mask, self.spec.block_length)
