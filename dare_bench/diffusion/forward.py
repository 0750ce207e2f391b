"""A noised batch as any family's network reads it, from what a :class:`ModelSpec` says and nothing else.

Bidirectional families look at each copy alone; under a shifted head the state before a token predicts it; block-causal
families get every copy twice, [noisy | clean], so that all blocks are learned in one forward (arXiv 2503.09573): a
noisy block sees itself and the clean blocks before it, as it will when it is decoded. Blocks are counted from a row's
first token, prompt included, as the samplers of these families count them.

Shape letters: B rows, T packed tokens of the copies, U packed tokens that the network reads (2 T for two copies),
N masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch
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


def noisy(batch: Batch, masked_T: Tensor, mask_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """(tokens [T] with the masks in, packed indices [N] of the masks, targets [N])."""
    at_N = masked_T.nonzero()[:, 0]
    return torch.where(masked_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N]


def predicted_from(batch: Batch, at_N: Tensor) -> Tensor:
    """Which packed tokens' hidden states predict the tokens at ``at_N`` under a shifted head (Dream): the token before,
    and a row's first token its own. int64 [N], sorted when ``at_N`` is; never another row's.

    Source: ``logits = cat([logits[:, :1], logits[:, :-1]], dim=1)`` in Dream-org's generation_utils.py.
    """
    return at_N - (batch.column_T[at_N] > 0).long()


@dataclass(frozen=True)
class TwoCopies:
    """A batch as block diffusion reads it: each row's noisy copy, then its clean one.

    ``at_N`` are the masked tokens' packed indices among the U tokens (sorted, all in noisy copies), ``targets_N`` the
    tokens that they hide; ``lengths`` are the doubled rows' lengths.
    """

    tokens_U: Tensor
    at_N: Tensor
    targets_N: Tensor
    lengths: tuple[int, ...]


def two_copies(batch: Batch, masked_T: Tensor, mask_id: int) -> TwoCopies:
    """Each row of the batch as [noisy | clean]; ``masked_T`` bool [T] says which tokens the noisy copy hides."""
    tokens_T, at_N, targets_N = noisy(batch, masked_T, mask_id)
    length_B = torch.tensor(batch.lengths)
    before_T = (length_B.cumsum(0) - length_B)[batch.row_T]  # tokens of earlier rows: their second copies go in between
    noisy_T = torch.arange(len(tokens_T)) + before_T
    tokens_U = torch.empty(2 * len(tokens_T), dtype=tokens_T.dtype)
    tokens_U[noisy_T] = tokens_T
    tokens_U[noisy_T + length_B[batch.row_T]] = batch.tokens_T
    return TwoCopies(tokens_U, noisy_T[at_N], targets_N, tuple(2 * n for n in batch.lengths))
