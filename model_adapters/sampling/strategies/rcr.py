"""Tokens of low confidence are masked again."""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies.quota import Quota


class Rcr(Quota):
    """As many masks are left after each forward as with ``quota``, at the positions of the block with the lowest
    running confidence: that of its token when it was written, or of the offer at a mask. So a written token is
    masked again when the others are more confident (RCR, running confidence remasking; approximate). Unlike the
    published code, tokens of earlier blocks are final."""

    name = "rcr"
    source = "RCR, MDPO, arXiv 2508.13148, autonomousvision/mdpo"
    edits = True
    remasks = True

    @property
    def static(self) -> bool:
        return True

    def select(self, offer: Offer, positions: Positions) -> Decision:
        assert positions.score_N is not None
        masked_N, row_N = positions.masked_N, positions.row_N
        score_N = torch.where(masked_N, offer.score_N.double(), positions.score_N)
        ranked = rank(score_N, positions)
        masks_R = positions.count(positions.live(masked_N))
        kept_R: Tensor = ranked.count_R - (masks_R - positions.quota_R).clamp(min=0)
        kept_N = ranked.rank_N < kept_R[row_N]
        return offer.write(positions, masked_N & kept_N, remasked_N=positions.live(~masked_N & ~kept_N))
