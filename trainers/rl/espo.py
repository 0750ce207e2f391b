"""ESPO (arXiv 2512.03759): the sequence is the action, its log-probability an ELBO from complementary masks.

    v = ELBO / L,    sequence PPO, mean over completions,    KL = k2 of the ELBOs / L

L is the length of the canvas. ``num_mc`` pairs of masks are drawn by the noise schedule ``coupled``, which is unbiased.
Source: sections 3 and 4, and ML-GSAI/ESPO at b5f2dac: recipes/train.yaml, and the settings that all recipes/run_*.sh
share (8 iterations, 2 pairs; a learning rate of 3e-6 for LoRA and 1e-6 without); the group and beta depend on the task
there. DARE's settings depend on it too: the variant has those for mathematics, for which DARE trains at a learning rate
of 5e-7 (a variant does not change the learning rate).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from dare_bench.diffusion.schedules import NoiseSchedule
from dare_bench.trainers.rl.algorithm_options import ESPOOptions
from dare_bench.trainers.rl.completions import Completion
from dare_bench.trainers.rl.estimators import Actions, elbo
from dare_bench.trainers.rl.options import ADAPTER, PublishedRollout
from dare_bench.trainers.rl.policy_gradient import PolicyGradient
from dare_bench.trainers.rl.surrogate import Surrogate, divergence


class ESPO(PolicyGradient):
    """ESPO."""

    name = "espo"
    estimator = "ELBO of pairs of complementary masks"
    action = "sequence"
    kl = "k2"
    reads_tokens_only = True
    paper, code = "arXiv 2512.03759", "ML-GSAI/ESPO"
    Options = ESPOOptions
    options: ESPOOptions
    learning_rate, lora_learning_rate = 1e-6, 3e-6
    training_defaults: ClassVar = {
        "adam_beta2": 0.99,
        "max_grad_norm": 0.2,
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 0.001,
        **ADAPTER,
    }
    rollouts: ClassVar = {
        "paper": PublishedRollout(1, 32, fields={"dream": {"top_p": 0.95}}),
        "dare": PublishedRollout(1 / 2, 32),
    }
    variants: ClassVar = {"dare": {"num_generations": 16, "beta": 0.001}}

    def actions(self, completions: Sequence[Completion], iteration: int, shared_key: int) -> Actions:
        return elbo(completions, self.spec.mask, iteration, NoiseSchedule("coupled", 2 * self.options.num_mc))

    def kl_of(self, log_ratio_A: Tensor, surrogate: Surrogate) -> Tensor:
        """k2 of the difference of ELBOs, divided by the length: of the normalized difference it would be L times
        smaller."""
        batch = surrogate.actions.copies.batch
        response_R = batch.response_lengths_B.double()
        length_S = torch.zeros(len(log_ratio_A), dtype=torch.float64)
        length_S[surrogate.actions.sample_R] = response_R
        return divergence(log_ratio_A * length_S, self.kl) / length_S
