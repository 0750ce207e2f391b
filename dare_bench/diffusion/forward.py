"""Masked copies as the input of any family's network, built from its :class:`ModelSpec` alone.

Bidirectional families read each copy alone. With a shifted head, the state before a token predicts it. Block-causal
families read every copy twice, [seen | clean], so that all blocks are trained in one forward (arXiv 2503.09573). A seen
block attends to itself and to the clean blocks before it, as in decoding. Blocks are counted from a row's first token,
prompt included, as the samplers of these families count them.

Shape letters: R copies, T packed tokens of them, U packed tokens that the network reads (2 T for two copies),
N scored tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_bench.diffusion.masked_copies import Batch, MaskedCopies
from dare_bench.diffusion.plan import Plan
from dare_bench.types import ModelSpec


@dataclass(frozen=True)
class Inputs:
    """The arguments of a network's forward that returns ``nll`` [N], in the order of the copies' scored tokens.

    ``temperature`` divides the logits.
    """

    tokens_U: Tensor
    positions_U: Tensor
    plan: Plan
    at_N: Tensor
    """Packed index of the state that predicts each scored token, sorted."""
    targets_N: Tensor
    temperature: float = 1.0

    def to(self, device: torch.device | str) -> Inputs:
        """A copy on a device."""
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
            "temperature": self.temperature,
        }


def inputs(copies: MaskedCopies, spec: ModelSpec, block_length: int | None = None) -> Inputs:
    """The input of the network of ``spec``; ``block_length`` overrides the model's."""
    block_length = spec.block_length if block_length is None else block_length
    if block_length is not None:
        return two_copies(copies, block_length, spec.predicts == "next", spec.causal_prefix)
    at_N = predicted_from(copies.batch, copies.at_N) if spec.predicts == "next" else copies.at_N
    return Inputs(copies.seen_T, copies.batch.column_T, Plan(copies.batch.lengths), at_N, copies.target_N)


def predicted_from(batch: Batch, at_N: Tensor) -> Tensor:
    """Packed indices of the hidden states that predict the tokens at ``at_N`` under a shifted head (Dream): the token
    before; a row's first token predicts itself. int64 [N], sorted if ``at_N`` is.

    Source: ``logits = cat([logits[:, :1], logits[:, :-1]], dim=1)`` in Dream-org's generation_utils.py.
    """
    return at_N - (batch.column_T[at_N] > 0).long()


def two_copies(copies: MaskedCopies, block_length: int, shifted: bool = False, causal_prefix: bool = False) -> Inputs:
    """The input of block diffusion: each copy as [seen | clean]; tokens are hidden and scored in the first copy.

    With a ``shifted`` head, a block's first token is predicted by the last state of the seen block before it, as in
    Fast-dLLM v2's training (modeling.py, arXiv 2509.26328); in decoding, that block is clean.
    """
    batch = copies.batch
    at_N = predicted_from(batch, copies.at_N) if shifted else copies.at_N
    length_R = torch.tensor(batch.lengths)
    before_T = (length_R.cumsum(0) - length_R)[batch.row_T]  # the clean halves of earlier copies
    seen_T = torch.arange(len(copies.seen_T)) + before_T
    tokens_U = torch.empty(2 * len(copies.seen_T), dtype=copies.seen_T.dtype)
    tokens_U[seen_T] = copies.seen_T
    tokens_U[seen_T + length_R[batch.row_T]] = batch.tokens_T
    plan = Plan(tuple(2 * n for n in batch.lengths), block_length, copies=2, causal_prefix=causal_prefix)
    return Inputs(tokens_U, plan.positions(), plan, seen_T[at_N], copies.target_N)
