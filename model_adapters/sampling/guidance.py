"""Classifier-free guidance: the rows of a pack occur in it a second time, with masked prompts.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def guided(cond_NV: Tensor, uncond_NV: Tensor, scale: float | Tensor) -> Tensor:
    """``u + (scale + 1)(c - u)`` (LLaDA generate.py)."""
    return uncond_NV + (scale + 1.0) * (cond_NV - uncond_NV)


def guided_where(logits_2NV: Tensor, scale_N: Tensor) -> Tensor:
    """Logits of positions and behind them of their unconditional copies, as one: [N, V]. Plain logits where ``scale_N``
    is 0."""
    cond_NV, uncond_NV = logits_2NV.chunk(2)
    scale_N1 = scale_N[:, None]
    mixed_NV = guided(cond_NV.float(), uncond_NV.float(), scale_N1).to(cond_NV.dtype)
    return torch.where(scale_N1 > 0, mixed_NV, cond_NV)
