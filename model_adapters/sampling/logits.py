"""What changes logits before tokens are proposed: classifier-free guidance, the top-k and top-p filters, and moves by
the size of rounding errors.

Shape letters: N positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.types import TIE


def guided(cond_NV: Tensor, uncond_NV: Tensor, scale: float | Tensor) -> Tensor:
    """``u + (scale + 1)(c - u)`` (LLaDA generate.py)."""
    return uncond_NV + (scale + 1.0) * (cond_NV - uncond_NV)


def guided_where(logits_2NV: Tensor, scale_N: Tensor) -> Tensor:
    """Logits of positions and behind them of their unconditional copies, which saw masked prompts, as one: [N, V].
    Plain logits where ``scale_N`` is 0."""
    cond_NV, uncond_NV = logits_2NV.chunk(2)
    scale_N1 = scale_N[:, None]
    mixed_NV = guided(cond_NV.float(), uncond_NV.float(), scale_N1).to(cond_NV.dtype)
    return torch.where(scale_N1 > 0, mixed_NV, cond_NV)


def keep_top_k(logits_NV: Tensor, k: int) -> Tensor:
    """The k largest logits and those equal to the k-th, the others -inf (SDAR and Dream agree on this)."""
    if k <= 0 or k >= logits_NV.shape[-1]:
        return logits_NV
    least_N1 = logits_NV.topk(k, dim=-1).values[..., -1:]
    return logits_NV.masked_fill(logits_NV < least_N1, float("-inf"))


def keep_top_p(logits_NV: Tensor, p: float) -> Tensor:
    """The smallest set of most probable tokens with more than p: a token becomes -inf if those before it have more."""
    if p >= 1:
        return logits_NV
    ordered_NV, index_NV = logits_NV.sort(dim=-1, descending=True)
    dropped_NV = (ordered_NV.softmax(-1).cumsum(-1) > p).roll(1, -1)
    dropped_NV[..., 0].fill_(False)
    return logits_NV.masked_fill(torch.zeros_like(dropped_NV).scatter(-1, index_NV, dropped_NV), float("-inf"))


def keep(logits_NV: Tensor, top_k: int, top_p: float, top_p_first: bool) -> Tensor:
    """Both, in the family's order: SDAR and LLaDA2 filter by k first, Dream by p."""
    if top_p_first:
        return keep_top_k(keep_top_p(logits_NV, top_p), top_k)
    return keep_top_p(keep_top_k(logits_NV, top_k), top_p)


@dataclass(frozen=True)
class Nudge:
    """A move of the logits at each position: of the tokens before ``token_N`` in the vocabulary, of the token itself,
    and of those after it. Of size ``TIE`` where the sign is 1 or -1, a number or [N]."""

    token_N: Tensor
    before_N: Tensor | float
    at_N: Tensor | float
    after_N: Tensor | float

    def of(self, logits_NV: Tensor, cut: slice = slice(None), size: float | None = None) -> Tensor:
        """The moved logits of the positions ``cut``, by ``size`` (None: ``TIE``), float32 [N, V]."""
        token_N1 = self.token_N[cut, None]
        id_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
        before, at, after = (
            sign[cut, None] if isinstance(sign, Tensor) else sign for sign in (self.before_N, self.at_N, self.after_N)
        )
        sign_NV = torch.where(id_V < token_N1, before, torch.where(id_V == token_N1, at, after))
        return logits_NV.float() + (TIE if size is None else size) * sign_NV


def against_others(token_N: Tensor, greedy: bool) -> list[Nudge]:
    """What turns the choice of a token: of the most probable one, all others; of one that was drawn by its place among
    the cumulated probabilities, those on one side of it."""
    if greedy:
        return [Nudge(token_N, 1.0, -1.0, 1.0)]
    return [Nudge(token_N, 1.0, -1.0, -1.0), Nudge(token_N, -1.0, -1.0, 1.0)]
