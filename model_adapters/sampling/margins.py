"""Margins: the smallest change of the logits that flips a decision, to first order.

Differences of scores cannot be compared with floating-point noise directly: probabilities close to 1 differ by 1e-7
where their logits differ by 1. So a gap between scores is divided by the sensitivity of the scores to the logits (the
sum of the absolute derivatives), after subtracting the effect of rounding.

The boundaries of top-k and top-p are not measured.

Shape letters: N open positions, R rows, V vocabulary, W most open positions of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.ranking import Ranked

CERTAIN = 1e-3
"""A position is certain if its token has at least 1 minus this probability. The order of two certain positions does not
matter: both are written, and by Bonferroni's inequality neither can make the other uncertain, as far as a model's
conditional probabilities are consistent."""


@dataclass(frozen=True)
class Sensitivity:
    """For every open position: the change of its score when all logits change by at most 1, the rounding error of the
    score, and whether the position is certain of its token."""

    slope_N: Tensor
    rounding_N: Tensor
    certain_N: Tensor

    @staticmethod
    def joined(parts: Sequence[Sensitivity]) -> Sensitivity | None:
        """The concatenated chunks; None if there are none."""
        names = ("slope_N", "rounding_N", "certain_N")
        return Sensitivity(*(torch.cat([getattr(part, name) for part in parts]) for name in names)) if parts else None

    def only(self, which_N: Tensor) -> Sensitivity:
        return Sensitivity(self.slope_N[which_N], self.rounding_N[which_N], self.certain_N[which_N])

    def scaled(self, by: Tensor | float) -> Sensitivity:
        """For scores that are multiplied by ``by``."""
        return Sensitivity(self.slope_N * by, self.rounding_N * by, self.certain_N)


class Lead:
    """The probability of each position's token (``first_N``) and of all others (``rest_N``, without the cancellation of
    1 - first). ``exact_N``: so close to 1 that it always rounds to 1; ties between such positions are broken by index,
    whatever the noise."""

    def __init__(self, probability_NV: Tensor, token_N: Tensor, temperature: float) -> None:
        self.probability_NV, self.temperature = probability_NV, temperature
        self.eps = torch.finfo(probability_NV.dtype).eps
        self.first_N = probability_NV.gather(1, token_N[:, None])[:, 0]
        self.others_NV = probability_NV.scatter(1, token_N[:, None], 0.0)
        self.rest_N = self.others_NV.sum(-1)
        self.exact_N = self.rest_N < self.eps / 4

    def of_most_probable(self) -> Lead:
        return Lead(self.probability_NV, self.probability_NV.argmax(-1), self.temperature)

    def sensitivity(self, slope_N: Tensor, rounding_N: Tensor) -> Sensitivity:
        """``slope_N`` is the derivative by logits at ``temperature``."""
        return Sensitivity(slope_N / self.temperature, rounding_N, self.rest_N < CERTAIN)


def distance(gap: Tensor, slope: Tensor, rounding: Tensor) -> Tensor:
    """The change of the logits that closes a gap between scores; inf if neither logits nor rounding change the
    scores."""
    error = (gap.double() - rounding).clamp(min=0) / slope.double().clamp(min=1e-300)
    return torch.where(slope + rounding > 0, error, float("inf"))


def of_tokens(logits_NV: Tensor, token_N: Tensor) -> Tensor:
    """Margins of the most probable tokens ``token_N``: half of the gap to the next logit, since both may change."""
    if logits_NV.shape[1] < 2:
        return torch.full(token_N.shape, float("inf"), dtype=torch.float64, device=token_N.device)
    best_N = logits_NV.gather(1, token_N[:, None])[:, 0]
    next_N = logits_NV.scatter(1, token_N[:, None], float("-inf")).amax(-1)
    return (best_N - next_N).double() / 2


def of_swap(ranked: Ranked, n_R: Tensor) -> Tensor:
    """Margin of a swap between the last selected and the first rejected position; inf if all or none are selected, or
    if both are certain of their tokens."""
    if ranked.slope_RW is None or ranked.rounding_RW is None or ranked.certain_RW is None:
        return ranked.unmeasured_R
    inside_R = (n_R > 0) & (n_R < ranked.count_R)
    gap_R = _at(ranked.sorted_RW, n_R - 1) - _at(ranked.sorted_RW, n_R)
    inside_R &= ~(_at(ranked.certain_RW, n_R - 1) & _at(ranked.certain_RW, n_R))
    slope_R = _at(ranked.slope_RW, n_R - 1) + _at(ranked.slope_RW, n_R)
    rounding_R = _at(ranked.rounding_RW, n_R - 1) + _at(ranked.rounding_RW, n_R)
    return torch.where(inside_R, distance(gap_R, slope_R, rounding_R), float("inf"))


def of_crossing(ranked: Ranked, limit: Tensor | float) -> Tensor:
    """Margin of each sorted score against its limit, float64 [R, W]; inf where a row has no such position."""
    assert ranked.slope_RW is not None and ranked.rounding_RW is not None
    gap_RW = distance((ranked.sorted_RW.double() - limit).abs(), ranked.slope_RW, ranked.rounding_RW)
    return torch.where(ranked.open_RW, gap_RW, float("inf"))


def of_threshold(ranked: Ranked, threshold: float, least_R: Tensor, most_R: Tensor, n_R: Tensor) -> Tensor:
    """Margin of a selection above a threshold, of at least ``least`` and at most ``most`` positions: one more rises
    above it, one falls below it, or two are swapped if a bound and not the threshold determined the count."""
    if ranked.slope_RW is None:
        return ranked.unmeasured_R
    over_R = (ranked.sorted_RW >= threshold).sum(1)
    near_RW = of_crossing(ranked, threshold)
    rise_R = torch.where(
        (n_R >= least_R) & (n_R < torch.minimum(most_R, ranked.count_R)), _at(near_RW, n_R), float("inf")
    )
    fall_R = torch.where((over_R > least_R) & (over_R <= most_R), _at(near_RW, n_R - 1), float("inf"))
    bound_R = torch.where((over_R < least_R) | (over_R > most_R), of_swap(ranked, n_R), float("inf"))
    return torch.minimum(torch.minimum(rise_R, fall_R), bound_R)


def of_limits(ranked: Ranked, limit_W: Tensor, n_R: Tensor) -> Tensor:
    """Margin of a selection whose n-th best position must reach the n-th limit (the first always does)."""
    if ranked.slope_RW is None:
        return ranked.unmeasured_R
    near_RW = of_crossing(ranked, limit_W)
    index_W = torch.arange(near_RW.shape[1], device=near_RW.device)
    counted_RW = (index_W > 0) & (index_W <= n_R[:, None])
    return torch.minimum(torch.where(counted_RW, near_RW, float("inf")).min(1).values, of_swap(ranked, n_R))


def of_sums(ranked: Ranked, spent_RW: Tensor, bound: float, n_R: Tensor) -> Tensor:
    """Margin of a selection while a sum of entropies stays within a bound: a sum crosses the bound, or two positions at
    the cut are swapped."""
    if ranked.slope_RW is None or ranked.rounding_RW is None:
        return ranked.unmeasured_R
    slope_RW = ranked.slope_RW.cumsum(1) - ranked.slope_RW
    rounding_RW = ranked.rounding_RW.cumsum(1) - ranked.rounding_RW
    gap_RW = distance((spent_RW - bound).abs().double(), slope_RW, rounding_RW)
    later_RW = ranked.open_RW.clone()
    later_RW[:, 0] = False
    near_R = torch.where(later_RW, gap_RW, float("inf")).min(1).values
    return torch.minimum(near_R, of_swap(ranked, n_R))


def _at(table_RW: Tensor, index_R: Tensor) -> Tensor:
    return table_RW.gather(1, index_R.clamp(0, table_RW.shape[1] - 1)[:, None])[:, 0]
