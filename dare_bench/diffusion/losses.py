"""The supervised loss of masked diffusion models, LLaDA's form (arXiv 2502.09992, eq. 5).

    loss = 1/B sum_b 1/L_b sum_{i masked in b} CE_i / t_b,    t_b ~ U(eps, 1), tokens masked on their own w.p. t_b

Its expectation is the negative ELBO for each response token, averaged over rows. What is divided by is L_b, the learned
tokens of the row, *not* the number of tokens that happened to be masked: dividing by that is another objective, which
also depends on the size of a micro-batch.

Shape letters: B rows, T packed tokens, N masked tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch


def weights(batch: Batch, masked_T: Tensor, t_B: Tensor, batch_rows: int | None = None) -> Tensor:
    """The factor 1 / (B L_b t_b) of every masked token, in packed order: float32 [N].

    ``batch_rows`` is B of the whole optimizer step when ``batch`` is a micro-batch of it: the losses of micro-batches
    then simply add up to the loss of the whole.
    """
    rows = batch_rows or len(batch.lengths)
    factor_B = 1.0 / (rows * batch.response_lengths_B.double() * t_B.double())
    return factor_B[batch.row_T[masked_T]].float()


def weighted_sum(nll_N: Tensor, weights_N: Tensor) -> Tensor:
    """The loss of a (micro-)batch from its masked tokens' cross-entropies in nats; 0, with a graph, when N is 0."""
    return torch.dot(nll_N.float(), weights_N.to(nll_N.device))


def noisy(batch: Batch, masked_T: Tensor, mask_id: int) -> tuple[Tensor, Tensor, Tensor]:
    """What a network is called with: (tokens [T] with the masks in, packed indices [N] of the masks, targets [N])."""
    at_N = masked_T.nonzero()[:, 0]
    return torch.where(masked_T, mask_id, batch.tokens_T), at_N, batch.tokens_T[at_N]


def predicted_from(batch: Batch, at_N: Tensor) -> Tensor:
    """Which packed tokens' hidden states predict the tokens at ``at_N`` under a shifted head (Dream): the token before,
    and a row's first token its own. int64 [N], sorted when ``at_N`` is; never another row's.

    Source: ``logits = cat([logits[:, :1], logits[:, :-1]], dim=1)`` in Dream-org's generation_utils.py.
    """
    return at_N - (batch.column_T[at_N] > 0).long()
