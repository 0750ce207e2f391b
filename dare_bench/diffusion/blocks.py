"""Block diffusion training: every row stands twice, [noisy | clean], and is learned in one forward (arXiv 2503.09573).

A noisy block sees itself and the clean blocks before it, as it will when it is decoded, so all blocks of a row train at
once. Who sees whom is the attention plan's business: ``Plan(pair.lengths, block_length, copies=2)``. Blocks are counted
from the row's first token, prompt included, as the samplers of these families count them.

Losses over the masked tokens of the noisy copy:

- SDAR (arXiv 2510.06303): one level t a row, masks w.p. p = (1 - eps) t + eps, cross-entropy over p and over the row's
  learned tokens. That is :func:`dare_bench.diffusion.losses.weights` with p as the level, and its mean over t is the
  block-wise ELBO. A row without a mask adds 0; the published trainer draws again, which biases the mean.
- LLaDA2 (inclusionAI/dFactory): t ~ U(0.3, 0.8) a row, plain mean of the cross-entropy, no factor 1/t.

Shape letters: B rows, T packed tokens, U = 2 T tokens of both copies, N masked tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch
from dare_bench.diffusion.losses import noisy
from dare_bench.diffusion.noise import even_levels
from dare_bench.errors import UsageError

BAND = (0.3, 0.8)
"""LLaDA2's noise levels (dFactory's noise_range)."""


@dataclass(frozen=True)
class TwoCopies:
    """A batch as block diffusion reads it: each row's noisy copy, then its clean one.

    ``at_N`` are the masked tokens' packed indices among the U tokens (sorted, all in noisy copies), ``targets_N`` what
    stood there; ``lengths`` are the doubled rows' lengths.
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


def band_levels(key: int, step: int, rows: int, band: tuple[float, float] = BAND) -> Tensor:
    """Levels that cover the band (low, high) evenly, in random order: float64 [B] (see ``noise.even_levels``).

    Raises:
        UsageError: not 0 <= low < high <= 1.
    """
    low, high = band
    if not 0.0 <= low < high <= 1.0:
        raise UsageError(f"noise band {low}..{high} is not one; give 0 <= low < high <= 1")
    return low + (high - low) * even_levels(key, step, rows, 0.0)


def mean_weights(masked_T: Tensor, total: int | None = None) -> Tensor:
    """The factor 1 / N of every masked token, float32 [N]: LLaDA2's plain mean.

    ``total`` is the number of masked tokens of the whole optimizer step when ``masked_T`` is a micro-batch's: the
    losses of micro-batches then add up to the loss of the whole.
    """
    count = int(masked_T.sum())
    return torch.full((count,), 1.0 / max(1, count if total is None else total))
