"""Tokens are accepted, and all others become noise again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import EntropyBound


class Renoise(EntropyBound):
    """Each forward accepts the drawn tokens that ``entropy_bound`` selects among all of the block, and opens all other
    positions again. The block becomes its most probable tokens after ``steps`` forwards, or as soon as they have been
    the same in ``stability`` forwards before and the mean entropy is below ``confidence`` (DiffusionGemma; exact)."""

    name = "renoise"
    source = "DiffusionGemma, transformers models/diffusion_gemma/generation_diffusion_gemma.py"
    ends = "planned"
    edits = True

    steps: int = Field(ge=1)
    stability: int = Field(default=1, ge=0)
    confidence: float = Field(default=0.005, gt=0)
    open_id: int

    @property
    def decision(self) -> Strategy:
        return self  # ``select`` reads ``steps``

    def remember(self, masked: Sequence[bool]) -> list[Tensor]:
        """The most probable tokens in the last ``stability`` forwards."""
        return []

    def select(self, offer: Offer) -> Decision:
        assert offer.best_NK is not None
        positions, best_N = offer.positions, offer.best_NK[:, 0]
        ranked = rank(offer.score_N, positions)
        count_R = self.count(ranked, positions)
        entropy_R = -ranked.sorted_RW.where(ranked.open_RW, 0.0).sum(1) / ranked.count_R
        ended_R = (entropy_R < self.confidence) & self._stable(best_N, positions)
        ended_R |= (positions.step_R + 1 >= self.steps) & (ranked.count_R > 0)
        accepted_N, ends_N = ranked.rank_N < count_R[positions.row_N], ended_R[positions.row_N]
        offer = _greedy(offer, ends_N)
        token_N = torch.where(accepted_N | ends_N, offer.token_N, self.open_id)
        return offer.write(token_N != positions.current_N, token_N=token_N, ended_R=ended_R)

    def _stable(self, best_N: Tensor, positions: Positions) -> Tensor:
        """Have the most probable tokens of a row been the same as often as required? Boolean [R]."""
        stable_R = torch.zeros(positions.rows, dtype=torch.bool)
        for r in positions.row_N.unique_consecutive().tolist():
            before, best_L = positions.memories[r], best_N[positions.row_N == r]
            stable_R[r] = len(before) == self.stability and all(torch.equal(best_L, old_L) for old_L in before)
            before[:] = [*before, best_L][-self.stability :] if self.stability else []
        return stable_R.to(best_N.device)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        assert decision.ended_R is not None
        return decision.ended_R


def _greedy(offer: Offer, which_N: Tensor) -> Offer:
    """The offer with the most probable tokens at the positions ``which_N``."""
    assert offer.best_NK is not None and offer.best_confidence_NK is not None
    return replace(
        offer,
        token_N=torch.where(which_N, offer.best_NK[:, 0], offer.token_N),
        confidence_N=torch.where(which_N, offer.best_confidence_NK[:, 0], offer.confidence_N),
        logprob_N=None if offer.logprob_N is None else torch.where(which_N, 0.0, offer.logprob_N),
    )
