"""Written tokens are masked again."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import SCORE, Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.quota import Quota


class Rcr(Quota):
    """As many masks are left after each forward as with ``quota``, at the positions of the block with the lowest
    running confidence: that of its token when it was written, or of the offer at a mask. So a written token is
    masked again when the others are more confident (RCR, running confidence remasking; approximate). Unlike the
    published code, tokens of earlier blocks are final."""

    name = "rcr"
    source = "RCR, MDPO, arXiv 2508.13148, autonomousvision/mdpo"
    rule = "a quota; unsure tokens are masked again"
    exact = ""
    edits = True
    remasks = True
    static: ClassVar[bool] = True

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        masked_N, row_N = positions.masked_N, positions.row_N
        score_N = torch.where(masked_N, offer.score_N.double(), positions.carried[SCORE])
        ranked = rank(score_N, positions)
        masks_R = positions.count(positions.live(masked_N))
        kept_R: Tensor = ranked.count_R - (masks_R - positions.quota_R).clamp(min=0)
        kept_N = ranked.rank_N < kept_R[row_N]
        return offer.write(masked_N & kept_N, remasked_N=positions.live(~masked_N & ~kept_N))


class P2(Strategy):
    """After forward i of S, the ``int(n (1 - i / S))`` of the block's n open positions whose predicted tokens are least
    probable are masks, whatever they held; masks outside of them are written, and other tokens stay as they are (path
    planning as in Open-dLLM; exact). Given tokens are final, and so are those of earlier blocks and of the prompt."""

    name = "p2"
    source = "P2, arXiv 2502.03540, as in pengzhangzhi/Open-dLLM generation_utils.py"
    rule = "a path: unsure tokens are masked again"
    exact = "Open-dCoder"
    edits = True
    ends = "planned"
    remasks = True
    static: ClassVar[bool] = True

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        masked_N = positions.masked_N
        free_N = positions.live(masked_N | positions.carried[SCORE].isfinite())
        ranked = rank(-offer.score_N, positions, free_N)  # of equal ones the leftmost is masked first
        # The share in float64, the product in float32: other arithmetic truncates to other integers.
        share_R = 1 - (positions.step_R + 1).double() / positions.limit_R.clamp(min=1)
        masks_R = (ranked.count_R.float() * share_R.float()).long()
        again_N = ranked.rank_N < masks_R[positions.row_N]
        return offer.write(masked_N & ~again_N, remasked_N=free_N & ~masked_N & again_N)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        return positions.is_last_R | (positions.masks_left(decision) == 0)
