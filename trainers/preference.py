"""Preference optimization on ELBO estimates: DPO (arXiv 2305.18290) with B for log p, and VRPO (arXiv 2505.19223).

    loss = -log sigmoid(beta [(B_th(w) - B_ref(w)) - (B_th(l) - B_ref(l))]),    the mean over the pairs of a step

B is the ELBO of a response in nats, estimated from ``draws`` noised copies, each with its own level and one mask, *not*
divided by the response's length: beta is per nat of the sequence, as in DPO. (DARE divides by the padded length: its
0.2 at 512 tokens is 0.0004 here.) The variance of B increases the loss and biases the gradient. VRPO lowers it by more
draws, n levels x 1 mask, and by evaluating both policies on the same copies. The answers of a pair always have
independent noise.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from torch.nn.functional import logsigmoid

from dare_bench.diffusion.schedules import Noise, NoiseSchedule, weights
from dare_bench.errors import UsageError
from dare_bench.trainers.noised import NoisedMethod
from dare_bench.trainers.objective import Losses, Metrics
from dare_bench.trainers.options import DPOOptions, VRPOOptions
from dare_bench.trainers.steps import Step, redraw
from dare_bench.types import ModelSpec


class DPO(NoisedMethod):
    """Direct preference optimization on ELBO estimates. Learning rates are those of the alignment handbook
    (recipes/zephyr-7b-beta/dpo), DARE's VRPO has the first too."""

    name = "dpo"
    reads = "pairs"
    Options = DPOOptions
    validation_metrics: ClassVar = {
        **NoisedMethod.validation_metrics,
        "rewards/chosen": True,
        "rewards/rejected": False,
        "rewards/margins": True,
        "rewards/accuracies": True,
        "logps/chosen": True,
        "logps/rejected": False,
    }
    learning_rate = 5e-7
    lora_learning_rate = 5e-6
    wants_reference = True

    def __init__(self, options: DPOOptions, spec: ModelSpec, canvas: int | None) -> None:
        if spec.block_length is None and options.noise == "blocks":
            raise UsageError(f"noise='blocks': {spec.family} has no attention blocks; omit it")
        super().__init__(options, spec, canvas)
        if options.noise == "even" and not (options.shared_noise and options.fresh_noise):
            raise UsageError("noise='even' spreads levels over a whole step: it needs shared_noise and fresh_noise")

    @property
    def schedule(self) -> NoiseSchedule:
        o = self.options
        return NoiseSchedule(o.noise, o.draws, o.eps, block_length=o.block_length or self.spec.block_length)

    def weigh(self, noise: Noise) -> Tensor:
        return weights(noise, "elbo")

    def loss(self, step: Step, nll_N: Tensor, reference: Losses | None) -> tuple[Tensor, Metrics]:
        """This process's part of the mean over the pairs of the step."""
        assert reference is not None
        other = step if self.options.shared_noise else redraw(step, self.schedule, self.spec.mask)
        reference_IR, policy_IR = other.sums(reference(other)), step.sums(nll_N)
        reward_IR = self.options.beta * (reference_IR - policy_IR)  # sums are negative ELBOs
        margin_I = reward_IR[:, 0] - reward_IR[:, 1]
        smoothing = self.options.label_smoothing
        loss_I = -(1 - smoothing) * logsigmoid(margin_I) - smoothing * logsigmoid(-margin_I)
        return loss_I.sum() / step.step_items, _metrics(reward_IR.detach(), policy_IR.detach())


def _metrics(reward_IR: Tensor, policy_IR: Tensor) -> Metrics:
    """Metrics by TRL's names; ``logps`` are ELBO estimates of whole answers, in nats."""
    margin_I = reward_IR[:, 0] - reward_IR[:, 1]
    metrics = {
        "rewards/chosen": reward_IR[:, 0],
        "rewards/rejected": reward_IR[:, 1],
        "rewards/margins": margin_I,
        "rewards/accuracies": margin_I > 0,
        "logps/chosen": -policy_IR[:, 0],
        "logps/rejected": -policy_IR[:, 1],
    }
    return {name: (float(values_I.sum()), len(values_I)) for name, values_I in metrics.items()}


class VRPO(DPO):
    """DPO with estimates of low variance."""

    name = "vrpo"
    Options = VRPOOptions
