"""Stand-ins for the kernels of FlashAttention, which need a GPU: the documented signatures of torch 2.13's
``varlen_attn`` and of flash-attn 2's ``flash_attn_varlen_func``, computed slowly on any device. They fail on arguments
that the kernels do not take. Dtypes besides float16 and bfloat16 are allowed here, so that values can be compared.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

FLASH2_PAGE = 256


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    return_aux=None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor | None = None,
    block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """With a block table as FlashAttention 3 computes it (pages of any size), otherwise as FlashAttention 2."""
    assert return_aux is None and scale is None and window_size == (-1, -1)
    assert enable_gqa or query.shape[1] == key.shape[-2]
    if block_table is None:
        assert seqused_k is None and cu_seq_k is not None
        return _attention(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k)
    assert cu_seq_k is None and num_splits == 1, "one split: no row depends on the others"
    assert not any(x.requires_grad for x in (query, key, value)), "paged keys have no gradients"
    assert key.dim() == 4 and key.shape[1] == 1 and value.shape == key.shape
    rows, most = block_table.shape
    for table in (block_table, seqused_k):
        assert table is not None and table.dtype == torch.int32 and table.is_contiguous()
        assert table.device == query.device and len(table) == rows == len(cu_seq_q) - 1
    assert most == max_k and int(seqused_k.max()) <= most
    assert int(block_table.min()) >= 0 and int(block_table.max()) < len(key)
    pages = torch.cat([table[:count] for table, count in zip(block_table, seqused_k.tolist(), strict=True)])
    cu_seq_k = torch.nn.functional.pad(seqused_k.cumsum(0), (1, 0)).int()
    return _attention(query, key[pages, 0], value[pages, 0], cu_seq_q, cu_seq_k, max_q, max_k)


grouped = partial(varlen_attn, enable_gqa=True)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    assert dropout_p == softcap == 0.0 and softmax_scale is None and not causal and window_size == (-1, -1)
    assert alibi_slopes is None and not return_attn_probs
    assert block_table is None or k.shape[1] % FLASH2_PAGE == 0
    assert block_table is None, "the stand-in has no pages of 256"
    return _attention(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)


def _attention(q: Tensor, k: Tensor, v: Tensor, first_q: Tensor, first_k: Tensor, most_q: int, most_k: int) -> Tensor:
    """In one operation a layer, like the kernels: scores of all queries and keys, of which those of one row count."""
    assert type(most_q) is int and type(most_k) is int
    assert q.dim() == k.dim() == 3 and k.shape == v.shape and q.shape[2] == k.shape[2] and q.shape[1] % k.shape[1] == 0
    assert q.dtype == k.dtype == v.dtype and q.device == k.device == v.device
    assert q.shape[2] % 8 == 0 and q.shape[2] <= 256
    for x in (q, k, v):
        assert x.stride(-1) == 1
    for first, x, most in ((first_q, q, most_q), (first_k, k, most_k)):
        assert first.dtype == torch.int32 and first.dim() == 1 and first.is_contiguous() and first.device == q.device
        counts = first.diff()
        assert int(first[0]) == 0 and int(first[-1]) == len(x) and int(counts.min()) >= 0 and int(counts.max()) <= most
    assert len(first_q) == len(first_k)
    row_N = torch.arange(len(first_q) - 1, device=q.device).repeat_interleave(first_q.diff())
    row_J = torch.arange(len(first_k) - 1, device=q.device).repeat_interleave(first_k.diff())
    fold = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(fold, 1), v.repeat_interleave(fold, 1)
    scores = torch.einsum("nhc,jhc->hnj", q, k) * q.shape[2] ** -0.5
    scores = scores.masked_fill(row_N[:, None] != row_J, float("-inf"))
    return torch.einsum("hnj,jhc->nhc", scores.softmax(-1), v)
