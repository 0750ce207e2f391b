"""Which token, and how sure: logits at open positions -> tokens, confidences, scores.

Works in chunks of positions, so that no vocabulary-wide float64 tensor of all positions is ever held.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.sampling.filters import keep
from dare_bench.model_adapters.sampling.margins import Doubt, distance, doubt, of_tokens
from dare_bench.model_adapters.sampling.rule import Rule

CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class Proposal:
    """For every open position: the token it would get, its confidence (float32 or float64), the score by which it is
    ranked, and where margins are recorded how far it is from another token (else inf) and what its score is worth."""

    token_N: Tensor
    confidence_N: Tensor
    score_N: Tensor
    margin_N: Tensor
    doubt: Doubt | None = None


def gumbel_argmax(logits_NV: Tensor, uniform_NV: Tensor, temperature: float) -> Tensor:
    """``argmax exp(logits) / (-log U)^T`` in float64: a draw from softmax(logits / T).

    Float64 on purpose: the published form overflows in float32 (LLaDA generate.py, add_gumbel_noise).
    """
    noise = (-torch.log(uniform_NV)) ** temperature
    return (logits_NV.double().exp() / noise).argmax(-1)


def inverse_cdf(logits_NV: Tensor, uniform_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """A draw from softmax(logits / T) by one uniform a position, and its margin: the error of logits that would move an
    edge of the token's share onto the uniform."""
    cdf = torch.softmax(logits_NV.double() / temperature, -1).cumsum(-1)
    cdf /= cdf[:, -1:].clone()
    token = torch.searchsorted(cdf, uniform_N[:, None], right=True).clamp_(max=cdf.shape[1] - 1)
    upper = cdf.gather(1, token)
    lower = torch.where(token > 0, cdf.gather(1, (token - 1).clamp(min=0)), 0.0)
    above, below = (
        distance(gap, 2 * edge * (1 - edge) / temperature, torch.zeros_like(edge))
        for gap, edge in ((upper - uniform_N[:, None], upper), (uniform_N[:, None] - lower, lower))
    )
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
    published_NV: Tensor | None = None,
) -> Proposal:
    """What each open position would get.

    Args:
        key_N, step_N, position_N: counters of each position's draw.
        published_NV: the published code's own noise, when it is replayed (see ``published.py``).
    """
    rows = max(1, CHUNK_ELEMENTS // logits_NV.shape[1])
    parts = []
    for i in range(0, max(1, logits_NV.shape[0]), rows):
        cut = slice(i, i + rows)
        uniform_N = None
        if not rule.greedy and published_NV is None:
            uniform_N = uniform(key_N[cut], Draw.TOKEN, step_N[cut], position_N[cut])
        parts.append(_choose(logits_NV[cut], rule, uniform_N, None if published_NV is None else published_NV[cut]))
    if len(parts) == 1:
        return parts[0]
    return Proposal(
        torch.cat([p.token_N for p in parts]),
        torch.cat([p.confidence_N for p in parts]),
        torch.cat([p.score_N for p in parts]),
        torch.cat([p.margin_N for p in parts]),
        Doubt.joined([p.doubt for p in parts if p.doubt is not None]),
    )


def _choose(logits_NV: Tensor, rule: Rule, uniform_N: Tensor | None, published_NV: Tensor | None) -> Proposal:
    logits_NV = _without(logits_NV.float(), rule.suppressed)
    best_N, token_N = logits_NV.max(-1)
    check_finite(best_N)
    tempered_NV = logits_NV / rule.temperature if rule.temperature > 0 else logits_NV
    kept_NV = tempered_NV
    if rule.temperature > 0 or rule.confidence_of == "kept":
        kept_NV = keep(tempered_NV, rule.top_k, rule.top_p, rule.top_p_first)
    margin_N = torch.full_like(best_N, float("inf"), dtype=torch.float64)
    if not rule.greedy:
        token_N, margin_N = _draw(logits_NV, kept_NV, rule, uniform_N, published_NV, margin_N)
    elif rule.record_margin:
        margin_N = of_tokens(logits_NV, token_N)
    # The published code removes these from the softmax after the token was chosen: a removed token has confidence 0.
    source_NV = {"plain": logits_NV, "tempered": tempered_NV, "kept": kept_NV}[rule.confidence_of]
    dtype = torch.float64 if rule.confidence_float64 else torch.float32
    probability_NV = torch.softmax(_without(source_NV, rule.uncounted), -1, dtype=dtype)
    confidence_N = probability_NV.gather(1, token_N[:, None])[:, 0]
    score_N = _score(confidence_N, probability_NV, rule)
    worth = doubt(rule, probability_NV, token_N, score_N) if rule.record_margin else None
    return Proposal(token_N, confidence_N, score_N, margin_N, worth)


def _draw(
    logits_NV: Tensor,
    kept_NV: Tensor,
    rule: Rule,
    uniform_N: Tensor | None,
    published_NV: Tensor | None,
    sure_N: Tensor,
) -> tuple[Tensor, Tensor]:
    """Drawn tokens, and the margin of each draw (unknown where published noise is replayed)."""
    if published_NV is None:
        assert uniform_N is not None
        token_N, margin_N = inverse_cdf(kept_NV, uniform_N, 1.0)
        return token_N, margin_N * rule.temperature
    if rule.draw_law == "gumbel":
        return gumbel_argmax(logits_NV, published_NV, rule.temperature), sure_N
    probability_NV = kept_NV.softmax(-1)
    if rule.draw_law == "masked":  # torch's Categorical normalises once more
        probability_NV = probability_NV / probability_NV.sum(-1, keepdim=True)
    return (probability_NV / published_NV).argmax(-1), sure_N


def _score(confidence_N: Tensor, probability_NV: Tensor, rule: Rule) -> Tensor:
    """What positions are ranked by, the highest first."""
    if rule.which == "margin":
        top = probability_NV.topk(2, -1).values
        return top[:, 0] - top[:, 1]
    if rule.how_many == "entropy_bound":
        return torch.special.xlogy(probability_NV, probability_NV).sum(-1)
    if rule.which == "entropy":  # the small constant is Dream's; near ties depend on it
        return (probability_NV * torch.log(probability_NV + 1e-10)).sum(-1)
    return confidence_N
