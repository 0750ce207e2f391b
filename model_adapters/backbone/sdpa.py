"""Attention of a pack by PyTorch's scaled_dot_product_attention, one call for each group of equal-length rows.

Grouped queries are folded into the query axis (G query heads share one key head), so keys are never copied.

Shape letters: T packed tokens, N selected queries, R rows, L row length, E cached keys, Q queries a row, H heads,
K key heads, G = H / K, C head channels.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dare_bench.diffusion.plan import GroupQueries, Plan, View


def _keys(own_SKC: Tensor, stored_SKC: Tensor | None, view: View, name: str) -> Tensor:
    """Cached keys (or values) and a group's own, [R, K, E + L, C]. ``name`` distinguishes the tensors of one view."""
    g = view.group
    own = own_SKC.view(g.rows, g.length, *own_SKC.shape[1:])
    if view.reads_RE is None:
        return own.transpose(1, 2)
    assert stored_SKC is not None
    if view.gathered is None:
        return torch.cat([stored_SKC[view.reads_RE], own], dim=1).transpose(1, 2)
    cached = view.reads_RE.shape[1]
    room = view.gathered.get(name)
    if room is None:
        room = view.gathered[name] = own.new_empty(g.rows, cached + g.length, *own.shape[2:])
        room[:, :cached] = stored_SKC[view.reads_RE]
    room[:, cached:] = own
    return room.transpose(1, 2)


def _grouped(q_RQHC: Tensor, k_RKEC: Tensor, v_RKEC: Tensor, mask: Tensor | None) -> Tensor:
    """[R, Q, H, C] queries against [R, K, E, C] keys."""
    rows, count, heads, channels = q_RQHC.shape
    kv = k_RKEC.shape[1]
    fold = heads // kv
    q = q_RQHC.view(rows, count, kv, fold, channels).permute(0, 2, 3, 1, 4).reshape(rows, kv, fold * count, channels)
    if mask is not None and fold > 1:
        mask = mask.repeat(1, 1, fold, 1)
    out = scaled_dot_product_attention(q, k_RKEC, v_RKEC, attn_mask=mask)
    return out.view(rows, kv, fold, count, channels).permute(0, 3, 1, 2, 4).reshape(rows, count, heads, channels)


def attend(
    q: Tensor,
    k_TKC: Tensor,
    v_TKC: Tensor,
    plan: Plan,
    queries: list[GroupQueries | None] | None = None,
    layer: int = 0,
) -> Tensor:
    """Softmax attention inside each row and over what it reads from the cache, scaled by C^-0.5.

    ``q`` is [T, H, C], or [N, H, C] for the selected tokens when ``queries`` is given; the result has q's shape. Of a
    plan with a sequence-parallel group, each rank gives all heads of its own tokens.
    """
    if plan.sequence is None:
        return _attend(q, k_TKC, v_TKC, plan, queries, layer)
    q, k_TKC, v_TKC = plan.sequence.by_heads(q, k_TKC, v_TKC, plan.tokens)
    return plan.sequence.by_tokens(_attend(q, k_TKC, v_TKC, plan, None, layer))


def _attend(
    q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, queries: list[GroupQueries | None] | None, layer: int
) -> Tensor:
    store = plan.cached.store if plan.cached else None
    stored_k = store.keys[layer] if store else None
    stored_v = store.values[layer] if store else None
    # One split instead of slices: the gradient of each slice would be a whole pack of zeros.
    sizes = [g.stop - g.start for g in plan.groups]
    k_G, v_G, q_G = k_TKC.split(sizes), v_TKC.split(sizes), q.split(sizes) if queries is None else ()
    parts = []
    for i, view in enumerate(plan.views(q.device)):
        g, chosen = view.group, None if queries is None else queries[i]
        if queries is not None and chosen is None:
            continue
        k, v = _keys(k_G[i], stored_k, view, f"k{layer}"), _keys(v_G[i], stored_v, view, f"v{layer}")
        if chosen is None:
            out = _grouped(q_G[i].view(g.rows, g.length, *q.shape[1:]), k, v, view.mask)
            parts.append(out.reshape(g.rows * g.length, *q.shape[1:]))
        else:
            mask = view.mask
            if mask is not None:
                row = torch.arange(g.rows, device=q.device)[:, None]
                mask = mask.expand(g.rows, *mask.shape[1:])[row, 0, chosen.column_RQ][:, None]
            parts.append(_grouped(q[chosen.index_RQ], k, v, mask)[chosen.keep_RQ])
    if not parts:  # no query is selected
        return q
    return parts[0] if len(parts) == 1 else torch.cat(parts)
