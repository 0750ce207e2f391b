"""Choice of tokens: logits of open positions -> proposed tokens, confidences, scores.

Computed in chunks of positions, so that there is never a float64 tensor of all positions and the vocabulary.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import COUNTER, Draws
from dare_bench.model_adapters.sampling.logits import Nudge, keep
from dare_bench.model_adapters.sampling.records import Offer, Positions
from dare_bench.model_adapters.sampling.scores import PositionScore

CHUNK_ELEMENTS = 1 << 24


@dataclass(frozen=True)
class TokenPolicy:
    """How a position's token is chosen: argmax at temperature 0 or top_k 1, else a draw."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    top_p_first: bool = False
    confidence_of: Literal["plain", "tempered", "kept"] = "plain"
    """The distribution of the confidence: softmax(logits) | at temperature | also after top-k and top-p."""
    suppressed: tuple[int, ...] = ()
    """Ids whose logits are -inf before a token is chosen."""
    uncounted: tuple[int, ...] = ()
    """Ids whose logits are -inf after the token is chosen, when its confidence is computed."""
    confidence_float64: bool = False
    alternatives: int = 0
    """The number of most probable tokens of each position that the strategy sees."""
    greedy_first: bool = False
    """The first token of a block is the argmax at any temperature."""
    cooled_to: float | None = None
    """The temperature falls to this in equal steps: it would reach it after ``cooling_steps`` forwards of a block."""
    cooling_steps: int = 1

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1

    def temperatures(self, step_N: Tensor) -> Tensor | float:
        """The temperature of positions after ``step_N`` forwards of their blocks, float32 [N, 1], or that of all."""
        if self.cooled_to is None or self.cooled_to == self.temperature:
            return self.temperature
        left_N = (self.cooling_steps - step_N).clamp(min=1) / self.cooling_steps
        return (self.cooled_to + (self.temperature - self.cooled_to) * left_N)[:, None]


def propose(
    logits_NV: Tensor,
    policy: TokenPolicy,
    score: PositionScore,
    positions: Positions,
    draws: Draws = COUNTER,
    nudge: Nudge | None = None,
) -> Offer:
    """The proposed tokens of all open positions.

    Args:
        draws: the source of random numbers.
        nudge: moves the logits first.
    """
    size = max(1, CHUNK_ELEMENTS // logits_NV.shape[1])
    cuts = [slice(i, i + size) for i in range(0, max(1, logits_NV.shape[0]), size)]
    return Offer.joined([_propose(logits_NV[cut], policy, score, positions, cut, draws, nudge) for cut in cuts])


def _propose(
    given_NV: Tensor,
    policy: TokenPolicy,
    score: PositionScore,
    positions: Positions,
    cut: slice,
    draws: Draws,
    nudge: Nudge | None,
) -> Offer:
    """The proposed tokens of the positions ``cut``, whose logits are ``given_NV``."""
    if nudge is not None:
        given_NV = nudge.of(given_NV, cut)
    best_NK = given_NV.topk(policy.alternatives, -1).indices if policy.alternatives else None
    logits_NV = _without(given_NV.float(), policy.suppressed)
    best_N, token_N = logits_NV.max(-1)
    finite = torch.isfinite(best_N).all()  # a NaN makes the maximum NaN
    tempered_NV = logits_NV
    if policy.temperature > 0:
        tempered_NV = logits_NV / policy.temperatures(positions.step_R[positions.row_N[cut]])
    kept_NV = tempered_NV
    if policy.temperature > 0 or policy.confidence_of == "kept":
        kept_NV = keep(tempered_NV, policy.top_k, policy.top_p, policy.top_p_first)
    logprob_N = torch.zeros_like(best_N, dtype=torch.float64) if policy.temperature > 0 else None
    if not policy.greedy:
        token_N, logprob_N = draws.tokens(logits_NV, kept_NV, policy.temperature, positions, cut)
    # The published code removes these from the softmax after the token was chosen: a removed token has confidence 0.
    source_NV = {"plain": logits_NV, "tempered": tempered_NV, "kept": kept_NV}[policy.confidence_of]
    dtype = torch.float64 if policy.confidence_float64 else torch.float32
    probability_NV = torch.softmax(_without(source_NV, policy.uncounted), -1, dtype=dtype)
    confidence_N = probability_NV.gather(1, token_N[:, None])[:, 0]
    score_N = score.of(probability_NV, confidence_N)
    best_confidence_NK = None if best_NK is None else probability_NV.gather(1, best_NK)
    if policy.greedy_first and not policy.greedy:  # it is written whatever its score is
        is_first_N = positions.is_first_N[cut]
        token_N = torch.where(is_first_N, given_NV.argmax(-1), token_N)
        logprob_N = None if logprob_N is None else torch.where(is_first_N, 0.0, logprob_N)
    every_NV = probability_NV if score.keeps else None
    return Offer(positions, token_N, confidence_N, score_N, finite, logprob_N, best_NK, best_confidence_NK, every_NV)


def _without(logits_NV: Tensor, ids: Sequence[int]) -> Tensor:
    if not ids:
        return logits_NV
    logits_NV = logits_NV.clone()
    for token in ids:  # a list of them as an index would be copied to the device in each forward
        logits_NV[:, token].fill_(float("-inf"))
    return logits_NV
