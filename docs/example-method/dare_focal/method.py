"""A training method of one's own: supervised fine-tuning with the focal loss (Lin et al., arXiv 1708.02002, eq. 4).

    loss = sum over masked tokens of w_i (1 - p_i)^gamma CE_i

The weights w (noise schedule, normalizer) are those of ``sft``; the factor takes the weight off tokens that the model
knows. Noise, packing, micro-batches, LoRA, processes, resume and evaluation are dare-bench's own and need nothing here.
"""

from __future__ import annotations

import torch
from pydantic import Field

from dare_bench.trainers.sft import SFT, SFTOptions


class FocalOptions(SFTOptions):
    """What ``dare-bench train focal --help`` lists beside the settings of every training."""

    gamma: float = Field(2.0, ge=0, description="How much weight certain tokens lose; 0 is plain sft.")


class Focal(SFT):
    """``reads`` says which rows a method learns from (examples or pairs), ``schedule`` how they are noised, ``weigh``
    what each masked token weighs in the loss of the whole step; here all three are those of ``sft``. A method with its
    own subclasses ``dare_bench.trainers.noised.NoisedMethod``, and an algorithm of reinforcement learning
    ``dare_bench.trainers.rl.policy_gradient.PolicyGradient``."""

    name = "focal"
    Options = FocalOptions
    linear = False  # the factor depends on the values of the token losses

    def loss(self, step, nll_N, reference):
        """The loss of a step as a function of its token losses, and figures for the log as (sum, count).

        ``nll_N`` is -log p of the masked tokens; the derivative of the result is what is trained.
        """
        factor_N = (1.0 - torch.exp(-nll_N.detach())) ** self.options.gamma
        focus = float((factor_N * step.weight_N).sum()), float(step.weight_N.sum())
        return torch.dot(nll_N * factor_N, step.weight_N), {"focus": focus}
