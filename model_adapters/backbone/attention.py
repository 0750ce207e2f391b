"""Attention of a pack by PyTorch's scaled_dot_product_attention, one call a group of equal-length rows.

Shape letters: T packed tokens, N selected queries, R rows, L row length, Q queries a row, H heads, K key heads,
C head channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dare_bench.model_adapters.backbone.plan import GroupQueries, Plan


def _spread(x_TKC: Tensor, start: int, rows: int, length: int, heads: int) -> Tensor:
    """One group as [R, H, L, C], key heads repeated for grouped queries."""
    x = x_TKC[start : start + rows * length].view(rows, length, x_TKC.shape[1], x_TKC.shape[2]).transpose(1, 2)
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def attend(
    q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, queries: list[GroupQueries | None] | None = None
) -> Tensor:
    """Softmax attention inside each row, scaled by C^-0.5.

    ``q`` is [T, H, C], or [N, H, C] for the selected tokens when ``queries`` is given; the result has q's shape.
    """
    heads = q.shape[1]
    if queries is None:
        parts = []
        for g in plan.groups:
            out_RHLC = scaled_dot_product_attention(
                _spread(q, g.start, g.rows, g.length, heads),
                _spread(k_TKC, g.start, g.rows, g.length, heads),
                _spread(v_TKC, g.start, g.rows, g.length, heads),
                attn_mask=plan.mask(g.length, q.device),
            )
            parts.append(out_RHLC.transpose(1, 2).reshape(g.rows * g.length, heads, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
    parts = []
    for g, chosen in zip(plan.groups, queries, strict=True):
        if chosen is None:
            continue
        mask = plan.mask(g.length, q.device)
        out_RHQC = scaled_dot_product_attention(
            q[chosen.index_RQ].transpose(1, 2),
            _spread(k_TKC, g.start, g.rows, g.length, heads),
            _spread(v_TKC, g.start, g.rows, g.length, heads),
            attn_mask=None if mask is None else mask[chosen.column_RQ][:, None],
        )
        parts.append(out_RHQC.transpose(1, 2)[chosen.keep_RQ])
    return parts[0] if len(parts) == 1 else torch.cat(parts)
