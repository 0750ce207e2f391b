"""Tokens are written early, and taken back when the others speak against them.

Shape letters: N open positions, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Carried, Strategy
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings

WRITTEN = "wino_written"
"""The forward of the block that wrote a token, counted from 1; 0 for masks and given tokens."""
FIRST = 30
"""What counts as accepted before the first forward of a block."""


class Wino(Strategy):
    """The positions with a confidence above ``threshold`` are written, at least one and at most 70 % of the masks (5 to
    20). If more than one is, the tokens of the block that all other tokens give a probability below
    ``threshold_back`` become masks again, fewer than the forward before has written (WINO; approximate).

    A second token at each place of the block, which no other token attends to, predicts its token without seeing it:
    so many more tokens are computed in each forward.
    """

    name = "wino"
    source = "WINO, arXiv 2507.18578, Feng-Hong/WINO-DLLM LLaDA/decoding.py decoding_wino"
    rule = "many drafted, doubtful ones masked again"
    edits = True
    remasks = True
    shadows = True
    float64 = True
    published = tuple(
        PaperSettings(("llada",), benchmarks, {"threshold": threshold}, {"gen_length": 256, "block_length": 128})
        for threshold, *benchmarks in ((0.6, "GSM8K"), (0.7, "MATH", "HumanEval"), (0.8, "MBPP"), (0.5, "ARC"))
    )

    threshold: float = Field(default=0.6, ge=0, le=1)
    threshold_back: float = Field(default=0.9, ge=0, le=1)

    def carries(self, vocab: int) -> Mapping[str, Carried]:
        return {**super().carries(vocab), WRITTEN: Carried(0, torch.long)}

    def select(self, offer: Offer) -> Decision:
        positions, row_N = offer.positions, offer.positions.row_N
        masked_N, when_N = positions.live(positions.masked_N), positions.carried[WRITTEN]
        ranked = rank(offer.score_N, positions, masked_N)
        masks_R = positions.count(masked_N)
        most_R = (masks_R * 7).div(10, rounding_mode="floor").clamp(min=5, max=20)
        above_R = positions.count(masked_N & (offer.confidence_N > self.threshold))
        drafted_R = torch.minimum(above_R.clamp(min=1), most_R)
        drafted_N = masked_N & (ranked.rank_N < drafted_R[row_N])
        again_N = self._again(positions, drafted_R)
        step_N = positions.step_R[row_N] + 1
        after_N = torch.where(drafted_N, step_N, torch.where(again_N, 0, when_N))
        return offer.write(drafted_N, remasked_N=again_N, carried={WRITTEN: after_N})

    def _again(self, positions: Positions, drafted_R: Tensor) -> Tensor:
        """The written tokens that become masks again, [N]."""
        assert positions.verified_N is not None
        row_N, when_N = positions.row_N, positions.carried[WRITTEN]
        known_N = positions.live(~positions.masked_N & (when_N > 0))
        doubted_N = known_N & (positions.verified_N < self.threshold_back)
        accepted_R = positions.count(known_N & (when_N == positions.step_R[row_N]))
        accepted_R = torch.where(positions.step_R == 0, FIRST, accepted_R)
        most_R = torch.minimum(positions.count(doubted_N), accepted_R - 1).clamp(min=0)
        most_R = torch.where(drafted_R > 1, most_R, 0)
        return doubted_N & (rank(-positions.verified_N, positions, doubted_N).rank_N < most_R[row_N])
