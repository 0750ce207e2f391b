"""Where random numbers come from: a function of the row's key, the forward and the position, so that a row's do not
depend on other rows. A :class:`ReplayedDraws` injects those of published code instead.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw
from dare_bench.model_adapters.sampling.records import Positions


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


class ReplayedDraws(Protocol):
    """The random numbers of published code for one row (``replay.published.Stream``)."""

    def mark(self) -> None:
        """Before a forward, which may fail: see :meth:`back`."""

    def back(self) -> None:
        """The forward failed: its random numbers come again."""

    def draws(self, sampler: Any, positions: Positions, rows: Sequence[Any], vocab: int) -> Draws:
        """What is drawn in a forward for the rows that ``sampler`` decides, of all ``rows``."""
        ...

    def leave_block(self, row: Any, vocab: int) -> None:
        """Draw for the forwards that the published code makes in a finished block."""

    def canvas(self, row: Any, vocab: int) -> Tensor:
        """Random tokens for the next forward of a row, by column of the block."""
        ...


def inverse_cdf(logits_NV: Tensor, uniform_N: Tensor) -> tuple[Tensor, Tensor]:
    """A draw from softmax(logits) by one uniform for each position, and its log probability in nats."""
    probability = torch.softmax(logits_NV.double(), -1)
    cdf = probability.cumsum(-1)
    cdf /= cdf[:, -1:].clone()
    token = torch.searchsorted(cdf, uniform_N[:, None], right=True).clamp_(max=cdf.shape[1] - 1)
    return token[:, 0], probability.gather(1, token)[:, 0].log()
