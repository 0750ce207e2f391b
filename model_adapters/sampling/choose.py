"""Which token, and how sure: logits at open positions -> (token, confidence).

Works in chunks of positions, so that no vocabulary-wide float64 tensor of all positions is ever held.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.sampling.rule import Rule

CHUNK_ELEMENTS = 1 << 24


def guided(cond_NV: Tensor, uncond_NV: Tensor, scale: float | Tensor) -> Tensor:
    """Classifier-free guidance: ``u + (scale + 1)(c - u)`` (LLaDA generate.py)."""
    return uncond_NV + (scale + 1.0) * (cond_NV - uncond_NV)


def gumbel_argmax(logits_NV: Tensor, uniform_NV: Tensor, temperature: float) -> Tensor:
    """``argmax exp(logits) / (-log U)^T`` in float64: a draw from softmax(logits / T).

    Float64 on purpose: the published form overflows in float32 (LLaDA generate.py, add_gumbel_noise).
    """
    noise = (-torch.log(uniform_NV)) ** temperature
    return (logits_NV.double().exp() / noise).argmax(-1)


def inverse_cdf(logits_NV: Tensor, uniform_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A draw from softmax(logits / T) by one uniform a position, and how far the uniform was from another token."""
    cdf = torch.softmax(logits_NV.double() / temperature, -1).cumsum(-1)
    cdf /= cdf[:, -1:].clone()
    token = torch.searchsorted(cdf, uniform_N[:, None], right=True).clamp_(max=cdf.shape[1] - 1)
    above = cdf.gather(1, token) - uniform_N[:, None]
    below = uniform_N[:, None] - torch.where(token > 0, cdf.gather(1, (token - 1).clamp(min=0)), -1.0)
    return token[:, 0], torch.minimum(above, below)[:, 0]


def _without(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    if not ids:
        return logits_NV
    logits_NV = logits_NV.clone()
    logits_NV[:, list(ids)] = float("-inf")
    return logits_NV


def check_finite(best_N: Tensor) -> None:
    """The largest logit of each position must be a number; a NaN anywhere in a row makes its maximum NaN."""
    if not bool(torch.isfinite(best_N).all()):
        bad = best_N[~torch.isfinite(best_N)][0].item()
        raise ModelOutputError(
            f"the network gave {bad} as its largest logit at {int((~torch.isfinite(best_N)).sum())} position(s); "
            "logits must be finite: check the weights (dare-bench validate) and the dtype"
        )


def choose(
    logits_NV: Tensor,
    rule: Rule,
    *,
    key_N: Tensor,
    step_N: Tensor,
    position_N: Tensor,
    uniform_NV: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [N], confidences [N] (float32 or float64) and margins [N] (the gap to another token; inf unless recorded).

    Args:
        key_N, step_N, position_N: counters of each position's draw.
        uniform_NV: the published code's own uniforms, when they are replayed.
    """
    rows = max(1, CHUNK_ELEMENTS // logits_NV.shape[1])
    parts = []
    for i in range(0, logits_NV.shape[0], rows):
        cut = slice(i, i + rows)
        noise = None
        if rule.temperature > 0 and uniform_NV is None:
            noise = uniform(key_N[cut], Draw.TOKEN, step_N[cut], position_N[cut])
        parts.append(_choose(logits_NV[cut], rule, noise, None if uniform_NV is None else uniform_NV[cut]))
    tokens, confidences, margins = zip(*parts, strict=True)
    return torch.cat(tokens), torch.cat(confidences), torch.cat(margins)


def _choose(
    logits_NV: Tensor, rule: Rule, uniform_N: Tensor | None, uniform_NV: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    logits_NV = _without(logits_NV.float(), rule.suppressed)
    best_N, token_N = logits_NV.max(-1)
    check_finite(best_N)
    margin_N = torch.full_like(best_N, float("inf"), dtype=torch.float64)
    if rule.temperature > 0:
        if uniform_NV is not None:
            token_N = gumbel_argmax(logits_NV, uniform_NV, rule.temperature)
        else:
            assert uniform_N is not None
            token_N, margin_N = inverse_cdf(logits_NV, uniform_N, rule.temperature)
    elif rule.record_margin and logits_NV.shape[1] > 1:
        top = logits_NV.topk(2, -1).values
        margin_N = (top[:, 0] - top[:, 1]).double()
    # The published code removes these from the softmax after the token was chosen: a removed token has confidence 0.
    counted_NV = _without(logits_NV, rule.uncounted)
    dtype = torch.float64 if rule.confidence_float64 else torch.float32
    confidence_N = torch.softmax(counted_NV, -1, dtype=dtype).gather(1, token_N[:, None])[:, 0]
    return token_N, confidence_N, margin_N
