"""The LM head as a separate module: logits of states, or token losses without ever holding all logits.

All chunks are computed in one call, so that hooks run once per forward pass: under FSDP each call gathers the weight of
the head, and processes with different numbers of chunks would otherwise deadlock.

Shape letters: N tokens, D width, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear

from dare_bench.diffusion.chunked import linear_nll


def losses_of(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, scale: float, rows: int
) -> Tensor:
    """-log softmax(scale (h W^T + b)) at the targets, float32 [N], ``rows`` tokens at a time."""
    if torch.is_grad_enabled():
        return linear_nll(hidden_ND, weight_VD, targets_N, bias_V, scale, rows).float()
    parts = []
    for hidden, targets in zip(hidden_ND.split(rows), targets_N.split(rows), strict=True):
        logits = linear(hidden, weight_VD, bias_V)
        logits = logits if scale == 1.0 else logits * scale
        parts.append(cross_entropy(logits.float(), targets, reduction="none"))
    return torch.cat(parts)


class Head(nn.Linear):
    """Logits [N, V] of states [N, D]; with ``targets_N`` their losses in nats, float32 [N]."""

    def forward(self, hidden_ND: Tensor, targets_N: Tensor | None = None, scale: float = 1.0, rows: int = 1) -> Tensor:
        if targets_N is None:
            return super().forward(hidden_ND)
        return losses_of(hidden_ND, self.weight, self.bias, targets_N, scale, rows)


class TiedEmbedding(nn.Embedding):
    """An embedding that is the head as well: ids give vectors, states [N, D] give logits or losses as :class:`Head`."""

    def forward(self, x: Tensor, targets_N: Tensor | None = None, scale: float = 1.0, rows: int = 1) -> Tensor:
        if not x.is_floating_point():
            return super().forward(x)
        if targets_N is None:
            return linear(x, self.weight)
        return losses_of(x, self.weight, None, targets_N, scale, rows)
