"""A reference that follows the policy: every k optimizer steps, reference = alpha policy + (1 - alpha) reference.

The published training scripts of d1, coupled-GRPO and ESPO do this through TRL, whose names and update these are
(``sync_ref_model``, ``ref_model_sync_steps``, ``ref_model_mixup_alpha``). The weights of the reference are part of a
checkpoint, since they can no longer be computed from the starting checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from dare_bench.errors import TrainingError

FILE = "reference/model.safetensors"
"""The reference's weights in a checkpoint. The folder keeps them apart from the checkpoint's own."""


class ReferenceSync(TrainerCallback):
    """Moves a reference network towards the policy after every ``every`` optimizer steps.

    Args:
        alpha: the weight of the policy, from 0 (excluded) to 1.
    """

    def __init__(self, every: int, alpha: float) -> None:
        self.every, self.alpha = every, alpha
        self.network: Any = None

    def attach(self, network: Any) -> None:
        """Move this network, which has the policy's parameters by name."""
        self.network = network

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        if state.global_step % self.every == 0:
            self.mix(model)

    @torch.no_grad()
    def mix(self, policy: Any) -> None:
        """One update. Parameters of a sharded policy are gathered one by one, by all processes together."""
        policies = dict(policy.named_parameters())
        for name, parameter in self.network.named_parameters():
            whole = policies[name]
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            parameter.mul_(1 - self.alpha).add_(whole.to(parameter.device, parameter.dtype), alpha=self.alpha)

    def save(self, folder: Path) -> None:
        """Write the weights to a checkpoint."""
        (folder / FILE).parent.mkdir(exist_ok=True)
        save_file(self._weights(), folder / FILE)

    @torch.no_grad()
    def load(self, folder: Path, step: int) -> None:
        """Read the weights of a checkpoint after ``step`` steps; until the first update they are the opened ones.

        Raises:
            TrainingError: they are missing, damaged, or of another network.
        """
        if step < self.every:
            return
        own = self._weights()
        try:
            read = load_file(folder / FILE)
        except (OSError, SafetensorError) as error:
            raise _damaged(folder, str(error)) from error
        if {name: _kind(weight) for name, weight in read.items()} != {name: _kind(w) for name, w in own.items()}:
            raise _damaged(folder, "it is of another network")
        for name, parameter in own.items():
            parameter.copy_(read[name])

    def _weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.network.named_parameters()}


def _kind(weight: Tensor) -> tuple[torch.Size, torch.dtype]:
    return weight.shape, weight.dtype


def _damaged(folder: Path, reason: str) -> TrainingError:
    return TrainingError(
        f"{folder / FILE} is damaged ({reason.splitlines()[0][:150]}); remove {folder} to resume from the previous "
        "checkpoint"
    )
