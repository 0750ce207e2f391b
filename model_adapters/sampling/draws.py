"""Where random numbers come from: a function of the row's key, the forward and the position, so that a row's do not
depend on other rows. A ``state.ReplayedDraws`` injects those of published code instead.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw
from dare_bench.model_adapters.sampling.records import Positions

NoiseRule = Literal["gumbel", "block", "sub_block", "masked", "gumbel_order", "canvas", "origin", "renoise"]
CountRule = Literal["schedule", "blocks", "forwards", "commit", "prefix", "commit_ahead", "carry"]


class Draws:
    """Draws by counter-based random numbers."""

    def tokens(
        self, logits_NV: Tensor, kept_NV: Tensor, temperature: float, positions: Positions, cut: slice
    ) -> tuple[Tensor, Tensor]:
        """Tokens of the positions ``cut``, and their log probabilities in nats, float64.

        Args:
            logits_NV: the logits of these positions.
            kept_NV: the same at the temperature, filtered.
        """
        return inverse_cdf(kept_NV, positions.uniform(Draw.TOKEN, cut))

    def order(self, positions: Positions) -> Tensor:
        """A uniform random score of each position."""
        return positions.uniform(Draw.ORDER)

    def weighted_order(self, scaled_N: Tensor, positions: Positions) -> Tensor:
        """Scores whose order is a draw without replacement from softmax(scaled), which takes the largest of
        probability / exponential noise."""
        return scaled_N.double() - torch.log(-torch.log(positions.uniform(Draw.ORDER)))


COUNTER = Draws()


@dataclass(frozen=True)
class ReferencePolicy:
    """How the published code draws random numbers (used if ``replay``) and counts forwards.

    ``noise``: Gumbel noise over the window | multinomial over the block | over a sub-block, none for the block's first
    token | over the masked positions | the same, with Gumbel noise on the order (Open-dLLM) | over the whole canvas |
    over the masked positions after a draw of the written ones | over the block, and then random tokens for it.
    ``count``: the whole schedule | that of the finished blocks | the forwards made | one more for each block and the
    prefill | one more for each block | one more for a prefill in the middle of a block and for the commit of the last
    block | the schedule and the positions that its last step leaves.
    """

    replay: bool = False
    noise: NoiseRule = "gumbel"
    count: CountRule = "forwards"


def inverse_cdf(logits_NV: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """A draw from softmax(logits) by one uniform for each position, and its log probability in nats."""
    probability = torch.softmax(logits_NV.double(), -1)
    cdf = probability.cumsum(-1)
    cdf /= cdf[:, -1:].clone()
    token = torch.searchsorted(cdf, uniform_N[:, None], right=True).clamp_(max=cdf.shape[1] - 1)
    return token[:, 0], probability.gather(1, token)[:, 0].log()
