"""Cross-entropy of a linear head in chunks of rows: the [N, V] logits never exist as one tensor.

One logit row of a vocabulary of 126,464 is half a megabyte in float32, and the plain loss holds three of them a token
(logits, log-softmax, gradient). Here a chunk's logits are made, reduced to its losses, and dropped. What the backward
needs depends on who is trained:

- the head is trained: the logits are made again, chunk by chunk, from the log-sum-exp that the forward kept (as
  Cut Your Losses does, arXiv 2411.09009, and Liger Kernel's fused linear cross-entropy, arXiv 2410.10989);
- the head is frozen (LoRA): d nll_i / d hidden_i does not depend on what comes from above but for one factor a token,
  so the forward makes it while the logits are at hand and the backward is one multiplication. No matrix product more
  than the plain loss has.

Losses come back one a token, because policy gradients weigh them one by one.

Shape letters: N tokens, R tokens of a chunk, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

CHUNK_ELEMENTS = 1 << 25
"""Logits held at once: 32 M numbers, 128 MB in float32."""
PRODUCT_ELEMENTS = 1 << 24
"""Of a half-precision weight gradient, made at once before it is added up in float32."""


def linear_nll(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    targets_N: Tensor,
    bias_V: Tensor | None = None,
    scale: float = 1.0,
    rows: int | None = None,
) -> Tensor:
    """``cross_entropy((scale * linear(hidden, weight, bias)).float(), targets, reduction="none")``, in chunks.

    Values and gradients are the plain expression's up to rounding; gradients go to hidden, weight and bias, whichever
    asks for one. Under autocast the product runs in its dtype, as ``nn.Linear`` does; weights and gradients keep
    theirs. NaN in gives NaN out. With N = 0 the result is empty and has a graph (every rank of a data-parallel
    group takes part in its backward). Not twice differentiable.

    Args:
        hidden_ND: final hidden states.
        weight_VD: the head's weight, or the tied embedding's.
        targets_N: int64 ids, 0 <= id < V.
        bias_V: the head's bias.
        scale: factor on the logits.
        rows: at most so many tokens a chunk; by default what :data:`CHUNK_ELEMENTS` holds.

    Returns:
        nats, float32 [N] (float64 for float64 weights).
    """
    limit = max(1, rows or CHUNK_ELEMENTS // len(weight_VD))
    heads = (weight_VD,) if bias_V is None else (weight_VD, bias_V)
    trained = torch.is_grad_enabled() and any(p.requires_grad for p in heads)
    kind = _TrainedHead if trained else _FrozenHead
    if not torch.is_grad_enabled():  # a Function is asked for gradients by its inputs alone
        hidden_ND = hidden_ND.detach()
    return kind.apply(hidden_ND, weight_VD, bias_V, targets_N, scale, limit, _dtype(hidden_ND, weight_VD))


def _dtype(hidden_ND: Tensor, weight_VD: Tensor) -> torch.dtype:
    """What the head computes in: autocast's dtype where that holds (it leaves float64 alone), else the weight's."""
    device = hidden_ND.device.type
    cast = torch.is_autocast_enabled(device) and weight_VD.dtype != torch.float64
    return torch.get_autocast_dtype(device) if cast else weight_VD.dtype


def _no_autocast(x: Tensor) -> torch.autocast:
    """What was cast stays cast: autocast would copy the weight again in every chunk. (``torch.amp.custom_fwd`` and
    ``custom_bwd`` do this for one kind of device, named when the code is written.)"""
    return torch.autocast(x.device.type, enabled=False)


class _Head:
    """The head in its computing dtype; makes float32 logits of a chunk that nobody else holds."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, scale: float, dtype: torch.dtype) -> None:
        self.weight, self.scale, self.dtype = weight_VD.to(dtype), scale, dtype
        self.bias = None if bias_V is None else bias_V.to(dtype)

    def logits(self, h_RD: Tensor) -> Tensor:
        x_RV = linear(h_RD, self.weight, self.bias)
        if self.scale != 1.0:
            x_RV *= self.scale
        return x_RV if x_RV.dtype == torch.float64 else x_RV.float()

    def chunks(self, hidden_ND: Tensor, rows: int) -> Iterator[tuple[slice, Tensor]]:
        """Places and hidden states of chunks as even as can be: a chunk of one row would read the whole weight too."""
        count = len(hidden_ND)
        pieces = -(-count // rows)
        for i in range(pieces):
            at = slice(count * i // pieces, count * (i + 1) // pieces)
            yield at, hidden_ND[at].to(self.dtype)


def _per_token(hidden_ND: Tensor, dtype: torch.dtype) -> Tensor:
    """Room for one number a token. Made before the loop: small results kept between large chunks would keep malloc
    from handing the chunks' memory back."""
    return hidden_ND.new_empty(len(hidden_ND), dtype=torch.promote_types(dtype, torch.float32))


def _losses(x_RV: Tensor, targets_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(losses, largest logit, sum of exp(logit - largest)), each [R]; ``x_RV`` becomes exp(logit - largest)."""
    top_R = x_RV.amax(-1)
    x_RV -= top_R[:, None]
    target_R = x_RV.gather(1, targets_R[:, None])[:, 0]
    sum_R = x_RV.exp_().sum(-1)
    return sum_R.log() - target_R, top_R, sum_R


def _gradient(p_RV: Tensor, targets_R: Tensor, factor_R: Tensor) -> Tensor:
    """``factor * (p - one_hot(target))`` in the place of ``p_RV``: the gradient at the logits."""
    p_RV *= factor_R[:, None]
    return p_RV.scatter_add_(1, targets_R[:, None], -factor_R[:, None])


class _FrozenHead(Function):
    """Gradients to the hidden states alone, made in the forward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        scale: float,
        rows: int,
        dtype: torch.dtype,
    ) -> Tensor:
        wanted = ctx.needs_input_grad[0]
        with _no_autocast(hidden_ND):
            head = _Head(weight_VD, bias_V, scale, dtype)
            nll_N = _per_token(hidden_ND, dtype)
            slope_ND = torch.empty_like(hidden_ND, dtype=dtype) if wanted else None
            for at, h_RD in head.chunks(hidden_ND, rows):
                x_RV = head.logits(h_RD)
                nll_N[at], _, sum_R = _losses(x_RV, targets_N[at])
                if slope_ND is not None:
                    x_RV /= sum_R[:, None]
                    d_RV = _gradient(x_RV, targets_N[at], torch.full_like(sum_R, scale))
                    torch.mm(d_RV.to(dtype), head.weight, out=slope_ND[at])
                    del d_RV
                del x_RV  # before the next chunk is made
        if slope_ND is not None:
            ctx.save_for_backward(slope_ND)
            ctx.dtype = hidden_ND.dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_N: Tensor) -> tuple[Tensor | None, ...]:
        (slope_ND,) = ctx.saved_tensors
        return (slope_ND * upstream_N[:, None]).to(ctx.dtype), None, None, None, None, None, None


class _TrainedHead(Function):
    """Gradients to hidden states, weight and bias; the logits are made twice."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        scale: float,
        rows: int,
        dtype: torch.dtype,
    ) -> Tensor:
        nll_N, lse_N = _per_token(hidden_ND, dtype), _per_token(hidden_ND, dtype)
        with _no_autocast(hidden_ND):
            head = _Head(weight_VD, bias_V, scale, dtype)
            for at, h_RD in head.chunks(hidden_ND, rows):
                nll_N[at], top_R, sum_R = _losses(head.logits(h_RD), targets_N[at])
                lse_N[at] = top_R + sum_R.log()
        ctx.save_for_backward(hidden_ND, weight_VD, bias_V, targets_N, lse_N)
        ctx.scale, ctx.rows, ctx.dtype = scale, rows, dtype
        return nll_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream_N: Tensor) -> tuple[Tensor | None, ...]:
        hidden_ND, weight_VD, bias_V, targets_N, lse_N = ctx.saved_tensors
        to_hidden, to_weight, to_bias = ctx.needs_input_grad[:3]
        exact = lse_N.dtype
        dh_ND = torch.empty_like(hidden_ND) if to_hidden else None
        dw_VD = torch.zeros_like(weight_VD, dtype=exact) if to_weight else None
        db_V = torch.zeros_like(bias_V, dtype=exact) if to_bias else None
        with _no_autocast(hidden_ND):
            head = _Head(weight_VD, bias_V, ctx.scale, ctx.dtype)
            for at, h_RD in head.chunks(hidden_ND, ctx.rows):
                x_RV = head.logits(h_RD)
                x_RV -= lse_N[at, None]
                d_RV = _gradient(x_RV.exp_(), targets_N[at], upstream_N[at] * ctx.scale)
                del x_RV
                if db_V is not None:
                    db_V += d_RV.sum(0)
                d_RV = d_RV.to(ctx.dtype)
                if dh_ND is not None:
                    dh_ND[at] = d_RV @ head.weight
                if dw_VD is not None:
                    _add_product(dw_VD, d_RV, h_RD)
                del d_RV  # before the next chunk is made
        dw_VD = None if dw_VD is None else dw_VD.to(weight_VD.dtype)
        db_V = None if db_V is None else db_V.to(bias_V.dtype)
        return dh_ND, dw_VD, db_V, None, None, None, None


def _add_product(total_VD: Tensor, d_RV: Tensor, h_RD: Tensor) -> None:
    """``total += d^T h``. A half-precision product is rounded once a chunk and added in float32, a strip of the
    vocabulary at a time so that no second [V, D] tensor is held."""
    if total_VD.dtype == d_RV.dtype:
        total_VD.addmm_(d_RV.t(), h_RD)
        return
    strip = max(1, PRODUCT_ELEMENTS // h_RD.shape[1])
    for part_SD, d_RS in zip(total_VD.split(strip), d_RV.split(strip, dim=1), strict=True):
        part_SD += d_RS.t() @ h_RD
