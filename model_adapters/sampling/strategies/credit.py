"""Predictions that stay the same gain credit.

Shape letters: N open positions, R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field

from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.scores import PositionScore, WithDistribution
from dare_bench.model_adapters.sampling.strategies import Carried, Strategy

CREDIT = "credit"
SLACK = 1e-5
"""How far below the best confidence a position is written with it, as in the published code."""


class CreditDecoding(Strategy):
    """All positions of the block whose confidence is at least ``threshold``, and the best one (CreditDecoding;
    approximate).

    Logits are raised by ``credit_alpha`` ln(1 + credit). In each forward the most probable token of a position gains
    credit, its probability to the power of ``boost_gamma``, and all credit of earlier forwards is multiplied by
    ``decay_beta``.
    """

    name = "credit_decoding"
    source = "CreditDecoding, arXiv 2510.06133, inclusionAI/dInfer parallel_strategy.py CreditThresholdParallelDecoder"
    rule = "all above a confidence, raised by credit"
    greedy = True

    threshold: float = Field(default=0.9, ge=0, le=1)
    credit_alpha: float = Field(default=0.7, ge=0)
    boost_gamma: float = Field(default=0.2, ge=0)
    decay_beta: float = Field(default=0.8, ge=0, le=1)

    @property
    def score(self) -> PositionScore:
        return WithDistribution()

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        return {CREDIT: Carried(0.0, torch.float32, size=(vocab,))}

    def select(self, offer: Offer) -> Decision:
        positions, probability_NV = offer.positions, offer.probability_NV
        assert probability_NV is not None
        top_N1, top_token_N1 = probability_NV.max(-1, keepdim=True)
        credit_NV = positions.carried[CREDIT] * self.decay_beta
        credit_NV = credit_NV.scatter_add(1, top_token_N1, top_N1.pow(self.boost_gamma).float())
        raised_NV = probability_NV * (1 + credit_NV).pow(self.credit_alpha)
        confidence_N, token_N = (raised_NV / raised_NV.sum(-1, keepdim=True)).max(-1)
        confidence_N = confidence_N.masked_fill(~positions.live(token_N != positions.mask_id), -1.0)
        best_R = confidence_N.new_full((positions.rows,), -1.0)
        best_R = best_R.scatter_reduce(0, positions.row_N, confidence_N, "amax")
        bound_R = (best_R - SLACK).clamp(min=0, max=self.threshold)
        written_N = confidence_N >= bound_R[positions.row_N]
        return offer.write(written_N, token_N=token_N, carried={CREDIT: credit_NV})
