"""Attention of a pack by PyTorch's scaled_dot_product_attention, one call for each group of equal-length rows.

Grouped queries are folded into the query axis (G query heads share one key head), so keys are never copied.

Shape letters: T packed tokens, N selected queries, R rows, L row length, E cached keys, Q queries a row, H heads,
K key heads, G = H / K, C head channels.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from dare_bench.diffusion.plan import GroupQueries, Plan, View, select_queries


def with_cached(own_RLKC: Tensor, stored_SKC: Tensor | None, view: View, name: str) -> Tensor:
    """Cached keys (or values) and the rows' own, [R, E + L, K, C]. ``name`` distinguishes the tensors of one view."""
    if view.reads_RE is None:
        return own_RLKC
    assert stored_SKC is not None
    if view.gathered is None:
        return torch.cat([stored_SKC[view.reads_RE], own_RLKC], dim=1)
    if name not in view.gathered:
        room = gather(view, stored_SKC, own_RLKC.dtype)
        view.gathered[name] = room, room[:, view.reads_RE.shape[1] :]
    room, place = view.gathered[name]
    place.copy_(own_RLKC)
    return room


def gather(view: View, stored_SKC: Tensor, dtype: torch.dtype) -> Tensor:
    """Cached keys (or values) of the rows, with room for their own: [R, E + L, K, C]."""
    assert view.reads_RE is not None
    rows, cached = view.reads_RE.shape
    room = stored_SKC.new_zeros(rows, cached + view.group.length, *stored_SKC.shape[1:], dtype=dtype)
    room[:, :cached] = stored_SKC[view.reads_RE]
    return room


def attended(q_RQHC: Tensor, k_REKC: Tensor, v_REKC: Tensor, view: View) -> Tensor:
    """[R, Q, H, C] queries of a view against its [R, E, K, C] keys: [R, K, G, Q, C], or [R, H, Q, C] where G is 1."""
    rows, count, heads, channels = q_RQHC.shape
    kv = k_REKC.shape[2]
    k, v, fold = k_REKC.transpose(1, 2), v_REKC.transpose(1, 2), heads // kv
    mask = view.repeated_mask(fold)
    if fold == 1:
        return scaled_dot_product_attention(q_RQHC.transpose(1, 2), k, v, attn_mask=mask)
    q = q_RQHC.view(rows, count, kv, fold, channels).permute(0, 2, 3, 1, 4).reshape(rows, kv, fold * count, channels)
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return out.view(rows, kv, fold, count, channels)


def dense(q_RQHC: Tensor, k_REKC: Tensor, v_REKC: Tensor, view: View) -> Tensor:
    """As :func:`attended`, by query: [R Q, H, C]."""
    out = attended(q_RQHC, k_REKC, v_REKC, view)
    by_query = out.transpose(1, 2) if out.dim() == 4 else out.permute(0, 3, 1, 2, 4)
    return by_query.reshape(-1, *q_RQHC.shape[2:])


class GroupedAttention:
    """One call for each group of rows of equal length; nothing is padded."""

    name = "sdpa"
    static_shapes = False

    def select(self, plan: Plan, at_N: Tensor) -> list[GroupQueries | None]:
        return select_queries(plan, at_N)

    def attend(
        self,
        q: Tensor,
        k_TKC: Tensor,
        v_TKC: Tensor,
        plan: Plan,
        selected: list[GroupQueries | None] | None,
        layer: int,
    ) -> Tensor:
        store = plan.cached.store if plan.cached else None
        stored_k = store.keys[layer] if store else None
        stored_v = store.values[layer] if store else None
        # One split instead of slices: the gradient of each slice would be a whole pack of zeros.
        sizes = [g.stop - g.start for g in plan.groups]
        k_G, v_G, q_G = split(k_TKC, sizes), split(v_TKC, sizes), split(q, sizes) if selected is None else ()
        parts = []
        for i, view in enumerate(plan.views(q.device)):
            g, chosen = view.group, None if selected is None else selected[i]
            if selected is not None and chosen is None:
                continue
            k = with_cached(k_G[i].view(g.rows, g.length, *k_TKC.shape[1:]), stored_k, view, f"k{layer}")
            v = with_cached(v_G[i].view(g.rows, g.length, *v_TKC.shape[1:]), stored_v, view, f"v{layer}")
            if chosen is None:
                parts.append(dense(q_G[i].view(g.rows, g.length, *q.shape[1:]), k, v, view))
            else:
                out = dense(q[chosen.index_RQ], k, v, replace(view, mask=_mask_of(view, chosen)))
                parts.append(out[chosen.keep_RQ.view(-1)])
        if not parts:  # no query is selected
            return q
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def split(x_T: Tensor, sizes: list[int]) -> tuple[Tensor, ...]:
    return x_T.split(sizes) if len(sizes) > 1 else (x_T,)


def _mask_of(view: View, chosen: GroupQueries) -> Tensor | None:
    """The rows of a view's mask for the selected queries, [R, 1, Q, E + L]."""
    if view.mask is None:
        return None
    rows = view.group.rows
    row_R1 = torch.arange(rows, device=view.mask.device)[:, None]
    return view.mask.expand(rows, *view.mask.shape[1:])[row_R1, 0, chosen.column_RQ][:, None]
