"""How far a choice was from going the other way: the error that, made in all logits at once, would turn it.

Scores of positions cannot be compared with float noise as they are: probabilities close to 1 lie 1e-7 apart where the
logits behind them lie 1 apart. So a gap between scores is divided by how fast the scores move with the logits (the sum
of the absolute derivatives, to first order), after what rounding alone can make of it is taken off.

Not measured, so never an excuse: the edge of what top-k and top-p keep.

Shape letters: N open positions, R rows, V vocabulary, W most open positions of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.rule import Rule

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.select import Ranked

CERTAIN = 1e-3
"""A position whose token has all but this of the probability is certain of it. Which of two certain positions goes
first is no choice that shows: both are written, and by Bonferroni's inequality neither can make the other doubtful, as
far as a model's conditional probabilities agree with each other."""


@dataclass(frozen=True)
class Doubt:
    """Of every open position: how far its score moves when all logits move by at most 1, what rounding can do to the
    score, and whether the position is certain of its token."""

    slope_N: Tensor
    blur_N: Tensor
    certain_N: Tensor

    @staticmethod
    def joined(parts: Sequence[Doubt]) -> Doubt | None:
        """Chunks of positions one behind another; None for none."""
        if not parts:
            return None
        return Doubt(
            *(torch.cat([getattr(part, name) for part in parts]) for name in ("slope_N", "blur_N", "certain_N"))
        )

    def only(self, which_N: Tensor) -> Doubt:
        return Doubt(self.slope_N[which_N], self.blur_N[which_N], self.certain_N[which_N])

    def scaled(self, by: Tensor | float) -> Doubt:
        """For scores that are multiplied by ``by``."""
        return Doubt(self.slope_N * by, self.blur_N * by, self.certain_N)


def distance(gap: Tensor, slope: Tensor, blur: Tensor) -> Tensor:
    """The error of logits that closes a gap between scores; inf where neither logits nor rounding move the scores."""
    away = (gap.double() - blur).clamp(min=0) / slope.double().clamp(min=1e-300)
    return torch.where(slope + blur > 0, away, float("inf"))


def of_tokens(logits_NV: Tensor, token_N: Tensor) -> Tensor:
    """Of the largest logits, ``token_N``: half of what they are ahead of the others, for one falls as another rises."""
    if logits_NV.shape[1] < 2:
        return torch.full(token_N.shape, float("inf"), dtype=torch.float64, device=token_N.device)
    best_N = logits_NV.gather(1, token_N[:, None])[:, 0]
    next_N = logits_NV.scatter(1, token_N[:, None], float("-inf")).amax(-1)
    return (best_N - next_N).double() / 2


def doubt(rule: Rule, probability_NV: Tensor, token_N: Tensor, score_N: Tensor) -> Doubt:
    """What the score of each position is worth, for the ways of scoring of ``choose``.

    A probability so close to 1 that every float rounds it to 1 does not move at all: ties between such positions are
    broken by their index, whatever the noise.
    """
    eps = torch.finfo(probability_NV.dtype).eps
    lead_N = probability_NV.argmax(-1) if rule.which == "margin" else token_N
    first_N = probability_NV.gather(1, lead_N[:, None])[:, 0]
    others_NV = probability_NV.scatter(1, lead_N[:, None], 0.0)
    rest_N = others_NV.sum(-1)  # 1 - first_N without its cancellation
    exact_N = rest_N < eps / 4
    certain_N = rest_N < CERTAIN
    if rule.which in ("random", "order") or rule.how_many == "bernoulli":
        return Doubt(torch.zeros_like(rest_N), torch.zeros_like(rest_N), certain_N)
    if rule.which == "entropy" or rule.how_many == "entropy_bound":
        log_NV = torch.log(probability_NV.clamp(min=torch.finfo(probability_NV.dtype).tiny))
        slope_N = (probability_NV * (log_NV - score_N[:, None]).abs()).sum(-1)
        blur_N = torch.where(exact_N, 0.0, eps) + 4 * eps * score_N.abs()
    elif rule.which == "margin":
        second_N = others_NV.amax(-1)
        apart_N = first_N - second_N
        slope_N = first_N * (rest_N + second_N) + second_N * (1 + apart_N) + (rest_N - second_N) * apart_N
        slope_N, blur_N = torch.where(exact_N, 0.0, slope_N), torch.where(exact_N, 0.0, eps * first_N)
    else:
        slope_N = torch.where(exact_N, 0.0, 2 * first_N * rest_N)
        blur_N = torch.where(exact_N, 0.0, eps * first_N)
    tempered = rule.temperature > 0 and rule.confidence_of != "plain"
    return Doubt(slope_N / rule.temperature if tempered else slope_N, blur_N, certain_N)


def of_swap(ranked: Ranked, n_R: Tensor) -> Tensor:
    """Of the first left out and the last taken changing places; inf where all or none are taken, or where both are
    certain of their tokens."""
    inside_R = (n_R > 0) & (n_R < ranked.count_R)
    if ranked.certain_RW is not None:
        inside_R &= ~(_at(ranked.certain_RW, n_R - 1) & _at(ranked.certain_RW, n_R))
    gap_R = _at(ranked.sorted_RW, n_R - 1) - _at(ranked.sorted_RW, n_R)
    if ranked.slope_RW is None or ranked.blur_RW is None:
        return torch.where(inside_R, gap_R.double(), float("inf"))
    slope_R = _at(ranked.slope_RW, n_R - 1) + _at(ranked.slope_RW, n_R)
    blur_R = _at(ranked.blur_RW, n_R - 1) + _at(ranked.blur_RW, n_R)
    return torch.where(inside_R, distance(gap_R, slope_R, blur_R), float("inf"))


def of_crossing(ranked: Ranked, limit: Tensor | float) -> Tensor:
    """Of every sorted score crossing its limit, float64 [R, W]; inf where a row has no such position."""
    gap_RW = (ranked.sorted_RW.double() - limit).abs()
    if ranked.slope_RW is not None and ranked.blur_RW is not None:
        gap_RW = distance(gap_RW, ranked.slope_RW, ranked.blur_RW)
    open_RW = torch.arange(gap_RW.shape[1], device=gap_RW.device) < ranked.count_R[:, None]
    return torch.where(open_RW, gap_RW, float("inf"))


def of_threshold(ranked: Ranked, threshold: float, least_R: Tensor, most_R: Tensor, n_R: Tensor) -> Tensor:
    """Where those above a threshold are taken, ``least`` at least and ``most`` at most: one more rises above it, one
    falls below, or two change places where a bound and not the threshold made the cut."""
    over_R = (ranked.sorted_RW >= threshold).sum(1)
    near_RW = of_crossing(ranked, threshold)
    rise_R = torch.where(
        (n_R >= least_R) & (n_R < torch.minimum(most_R, ranked.count_R)), _at(near_RW, n_R), float("inf")
    )
    fall_R = torch.where((over_R > least_R) & (over_R <= most_R), _at(near_RW, n_R - 1), float("inf"))
    bound_R = torch.where((over_R < least_R) | (over_R > most_R), of_swap(ranked, n_R), float("inf"))
    return torch.minimum(torch.minimum(rise_R, fall_R), bound_R)


def of_limits(ranked: Ranked, limit_W: Tensor, n_R: Tensor) -> Tensor:
    """Where the n-th best has to reach a limit of its own, the first none: those up to the first that fails."""
    near_RW = of_crossing(ranked, limit_W)
    index_W = torch.arange(near_RW.shape[1], device=near_RW.device)
    counted_RW = (index_W > 0) & (index_W <= n_R[:, None])
    return torch.minimum(torch.where(counted_RW, near_RW, float("inf")).min(1).values, of_swap(ranked, n_R))


def of_sums(ranked: Ranked, spent_RW: Tensor, bound: float, n_R: Tensor) -> Tensor:
    """Where positions are taken while a sum of entropies stays within a bound: any of the sums crossing it, or two
    positions at the cut changing places."""
    gap_RW = (spent_RW - bound).abs().double()
    if ranked.slope_RW is not None and ranked.blur_RW is not None:
        slope_RW = ranked.slope_RW.cumsum(1) - ranked.slope_RW
        gap_RW = distance(gap_RW, slope_RW, ranked.blur_RW.cumsum(1) - ranked.blur_RW)
    index_W = torch.arange(gap_RW.shape[1], device=gap_RW.device)
    open_RW = (index_W < ranked.count_R[:, None]) & (index_W > 0)
    near_R = torch.where(open_RW, gap_RW, float("inf")).min(1).values
    return torch.minimum(near_R, of_swap(ranked, n_R))


def _at(table_RW: Tensor, index_R: Tensor) -> Tensor:
    return table_RW.gather(1, index_R.clamp(0, table_RW.shape[1] - 1)[:, None])[:, 0]
