"""Classifier-free guidance: the rows of a pack occur in it a second time, with masked prompts.

Shape letters: T packed tokens, N open positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.packing import Pack


def guided(cond_NV: Tensor, uncond_NV: Tensor, scale: float | Tensor) -> Tensor:
    """``u + (scale + 1)(c - u)`` (LLaDA generate.py)."""
    return uncond_NV + (scale + 1.0) * (cond_NV - uncond_NV)


def guided_logits(network: Any, pack: Pack, tokens_T: Tensor, source_N: Tensor, copy_N: Tensor, scale_N: Tensor) -> Any:
    """Logits at the packed tokens ``source_N`` and at their unconditional copies ``copy_N``, as one: [N, V]. Plain
    logits where ``scale_N`` is 0."""
    at = torch.cat([source_N, copy_N])
    logits = network(tokens_T, pack.column_T, pack.plan, logits_at=at).logits
    cond_NV, uncond_NV = logits[: len(source_N)], logits[len(source_N) :]
    scale_N1 = scale_N[:, None]
    mixed_NV = guided(cond_NV.float(), uncond_NV.float(), scale_N1).to(cond_NV.dtype)
    return torch.where(scale_N1 > 0, mixed_NV, cond_NV)
