"""Attention of a pack in one call: its rows padded to one length, so that the number of operations does not depend on
the rows.

Shape letters: T packed tokens, N selected queries, R rows, L padded length, E cached keys, H heads, K key heads, C head
channels.
"""

from __future__ import annotations

from torch import Tensor

from dare_bench.diffusion.plan import PaddedView, Plan
from dare_bench.model_adapters.backbone.sdpa import attended, dense, gather, with_cached


class PaddedAttention:
    """One call for all rows, padded to the longest one."""

    name = "padded"
    static_shapes = True

    def select(self, plan: Plan, at_N: Tensor) -> Tensor:
        """The places of the selected tokens among the padded ones, [N]."""
        return plan.padded(at_N.device).place_T[at_N]

    def attend(
        self, q: Tensor, k_TKC: Tensor, v_TKC: Tensor, plan: Plan, selected: Tensor | None, layer: int
    ) -> Tensor:
        padded, store = plan.padded(q.device), plan.cached.store if plan.cached else None
        k = _keys(k_TKC, padded, store.keys[layer] if store else None, f"k{layer}")
        v = _keys(v_TKC, padded, store.values[layer] if store else None, f"v{layer}")
        if selected is None:
            if padded.index_RL is None:
                return dense(_rows(q, padded), k, v, padded.view)
            out = attended(_rows(q, padded), k, v, padded.view)
            if out.dim() == 4:
                return out[padded.row_T, :, padded.column_T]
            return out[padded.row_T, :, :, padded.column_T].reshape(q.shape)
        g = padded.view.group
        sparse = q.new_zeros(g.rows * g.length, *q.shape[1:]).index_copy(0, selected, q)
        return dense(sparse.view(g.rows, g.length, *q.shape[1:]), k, v, padded.view)[selected]


def _keys(own_TKC: Tensor, padded: PaddedView, stored_SKC: Tensor | None, name: str) -> Tensor:
    """Cached keys (or values) and the rows' own, [R, E + L, K, C]. ``name`` distinguishes the tensors of one view."""
    view, at_T = padded.view, padded.place_in_keys_T
    if at_T is None or view.gathered is None:
        return with_cached(_rows(own_TKC, padded), stored_SKC, view, name)
    if name not in view.gathered:
        assert stored_SKC is not None
        room = gather(view, stored_SKC, own_TKC.dtype)
        view.gathered[name] = room, room.flatten(0, 1)
    room, place = view.gathered[name]
    place.index_copy_(0, at_T, own_TKC)
    return room


def _rows(x_T: Tensor, padded: PaddedView) -> Tensor:
    """The packed tokens by row: [R, L, ...]."""
    g = padded.view.group
    return x_T.view(g.rows, g.length, *x_T.shape[1:]) if padded.index_RL is None else x_T[padded.index_RL]
