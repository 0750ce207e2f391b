"""A noised batch as any family's network reads it, from what a :class:`ModelSpec` says and nothing else.

Bidirectional families look at each copy alone; under a shifted head the state before a token predicts it; block-causal
families get every copy twice, [noisy | clean], so that all blocks are learned in one forward.

Shape letters: T packed tokens of the copies, U packed tokens that the network reads (2 T for two copies), N masked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_bench.diffusion.blocks import two_copies
from dare_bench.diffusion.canvas import Batch
from dare_bench.diffusion.losses import noisy, predicted_from
from dare_bench.diffusion.plan import Plan
from dare_bench.types import ModelSpec


@dataclass(frozen=True)
class Inputs:
    """The arguments of a network's forward that gives ``nll`` [N], the masked tokens in packed order."""

    tokens_U: Tensor
    positions_U: Tensor
    plan: Plan
    at_N: Tensor
    targets_N: Tensor

    def to(self, device: torch.device | str) -> Inputs:
        """The same on a device."""
        names = ("tokens_U", "positions_U", "at_N", "targets_N")
        return replace(self, **{name: getattr(self, name).to(device, non_blocking=True) for name in names})

    def arguments(self) -> dict[str, object]:
        """By the names of :meth:`DiffusionNetwork.forward`."""
        return {
            "input_ids": self.tokens_U,
            "positions": self.positions_U,
            "plan": self.plan,
            "logits_at": self.at_N,
            "targets": self.targets_N,
        }


def inputs(batch: Batch, masked_T: Tensor, spec: ModelSpec, block_length: int | None = None) -> Inputs:
    """What the network of ``spec`` is called with; ``block_length`` is the model's own unless given."""
    grid = spec.block_length if block_length is None else block_length
    if grid is not None:
        pair = two_copies(batch, masked_T, spec.mask_id)
        plan = Plan(pair.lengths, grid, copies=2)
        return Inputs(pair.tokens_U, plan.positions(), plan, pair.at_N, pair.targets_N)
    tokens_T, at_N, targets_N = noisy(batch, masked_T, spec.mask_id)
    from_N = predicted_from(batch, at_N) if spec.predicts == "next" else at_N
    return Inputs(tokens_T, batch.column_T, Plan(batch.lengths), from_N, targets_N)
