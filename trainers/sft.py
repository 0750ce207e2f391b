"""Supervised fine-tuning: the losses of all families' authors as settings of one loss.

    loss = sum over masked tokens i of w_i CE_i / Z

``w`` is the noise schedule's ELBO weight 1 / p (LLaDA, arXiv 2502.09992, eq. 5; SDAR, arXiv 2510.06303), Dream's CART
(arXiv 2508.15487, section 4.2) or 1 (LLaDA2, inclusionAI/dFactory). Z is, for ``row``, rows x the row's learned tokens;
for ``token``, all learned tokens of the step; for ``mask``, all masked ones. With ELBO weights and ``row`` the
expectation is the negative ELBO for each response token, averaged over rows. Z belongs to the whole optimizer step
(DARE's to a micro-batch, so that its objective changes with the division). On drawn canvases the EOS tokens after an
answer count as half of their row's learned tokens at most, in ``w`` and in Z.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.schedule_names import CART_Q
from dare_bench.diffusion.schedules import Noise, NoiseSchedule, weights
from dare_bench.errors import UsageError
from dare_bench.trainers.noised import NoisedMethod, eos_factors
from dare_bench.trainers.objective import Losses, Metrics
from dare_bench.trainers.options import SFTOptions
from dare_bench.trainers.steps import Step
from dare_bench.types import ModelSpec


class SFT(NoisedMethod):
    """Supervised fine-tuning."""

    name = "sft"
    Options = SFTOptions
    learning_rate = 1e-5
    lora_learning_rate = 1e-4
    linear = True

    def __init__(self, options: SFTOptions, spec: ModelSpec, canvas: int | None) -> None:
        super().__init__(options, spec, canvas)
        if options.noise == "band" and options.weight == "elbo":
            raise UsageError(
                "weight='elbo' with noise='band' is not an ELBO: its levels do not cover 0 to 1; use weight='plain'"
            )
        if options.cart_q != CART_Q and options.weight != "cart":
            raise UsageError(f"cart_q={options.cart_q} belongs to weight='cart'; give weight='cart' too, or omit it")

    @classmethod
    def family_defaults(cls, spec: ModelSpec) -> dict[str, Any]:
        return dict(spec.sft)

    @property
    def schedule(self) -> NoiseSchedule:
        o = self.options
        return NoiseSchedule(o.noise, o.draws, o.eps, o.band, o.block_length or self.spec.block_length)

    def weigh(self, noise: Noise) -> Tensor:
        batch = noise.batch
        factor_T = batch.response_T.double()
        if self.resolved_options().padding == "drawn":
            factor_T *= eos_factors(batch, self.eos_id)
        weight_T = weights(noise, self.options.weight, self.options.cart_q) * factor_T
        if self.options.normalize == "row":
            length_R = torch.bincount(batch.row_T, factor_T, len(batch.lengths))
            return weight_T / (length_R[batch.row_T].clamp(min=1) * (len(batch.lengths) / noise.draws))
        if self.options.normalize == "token":
            return weight_T / (factor_T.sum() / noise.draws)
        return weight_T / (factor_T[noise.masked_T].sum().clamp(min=1) / noise.draws)

    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        return torch.dot(nll_N, step.weight_N), {}
