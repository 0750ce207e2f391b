"""The reference policy, which gets no gradient: the starting checkpoint, or another one.

Under LoRA the starting checkpoint is the network with its adapter off; otherwise a second model is opened (unsharded on
every process). It may follow the policy, by TRL's names and update (:class:`ReferenceSync`); its weights are then part
of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback

from dare_bench.errors import TrainingError, UsageError
from dare_bench.protocols import LoadedModel, Services
from dare_bench.trainers.objective import Losses, Objective
from dare_bench.trainers.steps import Step
from dare_bench.training.spec import TrainSpec

Values = Callable[[Any, Step], Tensor]
"""-log p of a step's scored tokens under a network, float32 [N] on the CPU, without a graph."""


class ReferenceLosses:
    """The reference's token losses (``objective.Losses``).

    ``losses``: token losses of a step, computed in its forwards; ``keep``: cache those of each item by its key, for
    methods that reuse noise. A cached value is computed from its item alone, so that a resumed training computes the
    same. ``adapter_off``: it is the network in training with its adapter off; ``network``: the reference's, unless it
    is that.
    """

    def __init__(
        self, losses: Losses, keep: bool = False, adapter_off: bool = False, network: Any | None = None
    ) -> None:
        self.losses, self.adapter_off, self.network = losses, adapter_off, network
        self.cache: dict[int, Tensor] | None = {} if keep else None

    def __call__(self, step: Step) -> Tensor:
        if self.cache is None:
            return self.losses(step)
        item_N = step.item_R[step.copies.copy_N]
        nll_N = torch.empty(len(item_N), dtype=torch.float64)
        for place, key in enumerate(step.keys):
            if key not in self.cache:
                self.cache[key] = self.losses(step.take([place]))
            nll_N[item_N == place] = self.cache[key].double()
        return nll_N


def open_reference_policy(
    objective: Objective, spec: TrainSpec, model: LoadedModel, services: Services, accelerator: Any, values: Values
) -> ReferenceLosses:
    """The reference of a training; ``values``: :meth:`dare_bench.trainers.forwards.Forwards.values`. Raises UsageError:
    a reference with other tokens than the model; CheckpointError: it cannot be opened."""
    adapter_off = spec.peft is not None and spec.adapter is None and objective.reference is None
    network: Any = model.network
    without: Callable[[], AbstractContextManager[None]] = model.without_adapter
    if not adapter_off:
        other = services.open(objective.reference)
        _check(other, model, objective.reference)
        assert other.network is not None
        network, without = other.network.requires_grad_(False).eval().to(accelerator.device), nullcontext

    def losses(step: Step) -> Tensor:
        with without():
            return values(network, step)

    # Forwards of a sharded network are collective: what one process has cached, another may still have to compute.
    keep = not objective.fresh_noise and not (adapter_off and spec.fsdp)
    return ReferenceLosses(losses, keep, adapter_off, None if adapter_off else network)


def _check(other: LoadedModel, model: LoadedModel, name: str | None) -> None:
    for field in ("family", "vocab_size", "mask_id"):
        value, expected = getattr(other.spec, field), getattr(model.spec, field)
        if value != expected:
            raise UsageError(
                f"reference={name!r} has {field}={value!r}, the model {expected!r}: both must read the same tokens; "
                "give a checkpoint of the same family, or omit it"
            )


FILE = "reference/model.safetensors"
"""The reference's weights in a checkpoint. The folder keeps them apart from the checkpoint's."""


class ReferenceSync(TrainerCallback):
    """Moves a reference network towards the policy after every ``every`` optimizer steps. ``alpha``: the weight of the
    policy, from 0 (excluded) to 1."""

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
        Raises TrainingError: they are missing, damaged, or of another network."""
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
