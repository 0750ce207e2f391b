"""The same bound as ``likelihood.py`` with less noise in fewer passes: stratified, counter-based draws with a control.

The bound is a sum over mask sizes, sum_{k=1}^n mu_k, where mu_k is the mean loss of a masked token when k random ones
of n are masked. mu_n takes one forward, in which all are masked; draws estimate the other sizes. Three parts reduce
their noise, alone or joined (``fast`` is all of them); each leaves the expected value as it is:

- ``sizes``: draw size k with a probability proportional to 1 / sqrt(k (n - k)), not uniformly: a draw's error is that
  of a mean of k tokens, and of n - k in its complement. Units then count different numbers of sizes, whose mean loss,
  fitted to the other half of the draws, is taken out.
- ``pairs``: each second mask is the complement of the one before it, so a pair covers every token once.
- ``control``: a token's loss with all masked predicts its other losses. Subtract coefficient x (its loss - the mean of
  all tokens), whose expected value over the masks of one size is 0. The coefficient of each half of the draws is
  fitted to the other half, so the two are independent: the slope of tokens within masks, times the factor between 0 and
  1 with which the units vary least. 0 is among them, so a useless control is left out.

Every stratum of sizes holds two independent units (masks, or pairs), one in each half; their differences give the
standard error. Randomness depends on (key, unit, index in the target) alone, so the choices of a document, which have
one key, share their masks.

``adaptive`` draws ``pairs``, each a round of its own that does not depend on how many there are, until the best choice
of a document is known (``separation.py``).

Shape letters: M masks (the first hides all), n tokens, U strata with one unit a half, F = 2 halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.likelihood import EXACT_LIMIT, MaskDraws, enumerate_masks, mean_deviations
from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.diffusion.separation import LEAST_ROUNDS
from dare_bench.errors import DecodingError
from dare_bench.types import ADAPTIVE

PARTS = ("sizes", "pairs", "control")
FAST = "fast"
ENUMERATED = 16
"""``adaptive`` enumerates the masks of a target where that takes no more forwards than so many draws."""
ROUND = 2
"""Draws of a round of ``adaptive``: a pair of complementary masks."""
FIRST_ROUND = LEAST_ROUNDS * ROUND
"""Draws of the first, after which the choices are looked at."""
_LEAST = 1e-3
"""Differences of all-masked losses far below this (in nats, or as a share of a control) are taken for rounding errors,
so that rounding changes results by rounding errors only."""


def parts_of(estimator: str) -> frozenset[str] | None:
    """The parts that an estimator joins (``"sizes+pairs"``); None if it is none of these."""
    names = {FAST: PARTS, ADAPTIVE: ("pairs",)}.get(estimator) or estimator.split("+")
    return frozenset(names) if set(names) <= set(PARTS) else None


def canonical(estimator: str) -> str:
    """One name for each set of parts: in their order, and ``fast`` for all of them."""
    parts = parts_of(estimator)
    if parts is None or estimator == ADAPTIVE:
        return estimator
    return FAST if len(parts) == len(PARTS) else "+".join(name for name in PARTS if name in parts)


def check_draws(estimator: str, mc_num: int) -> None:
    """Raise DecodingError unless ``mc_num`` draws make two halves of whole units, or whole rounds of ``adaptive``."""
    if estimator == ADAPTIVE:
        if mc_num < FIRST_ROUND or mc_num % ROUND:
            raise DecodingError(
                f"mc_num={mc_num}, the limit of estimator='adaptive', must be an even number of at least {FIRST_ROUND},"
                f" its first round; give mc_num={max(FIRST_ROUND, mc_num + mc_num % ROUND)}"
            )
        return
    unit = 2 * _sides(estimator)
    if mc_num < 1 or mc_num % unit:
        raise DecodingError(
            f"mc_num={mc_num} must be a multiple of {unit} with estimator={estimator!r}; give "
            f"mc_num={max(unit, mc_num + -mc_num % unit)}"
        )


def check_level(level: Any) -> None:
    """Raise DecodingError unless ``level`` is a probability between 0 and 1."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise DecodingError(f"level={level!r} must be a number between 0 and 1, such as 0.95")


def controlled_passes(n: int, mc_num: int, estimator: str) -> int:
    """Most forwards for a target, or block, of n tokens."""
    return (1 << n) - 1 if enumerates(n, mc_num, estimator) else mc_num + 1


def enumerates(n: int, mc_num: int, estimator: str) -> bool:
    """Are there so few masks of n tokens that all of them take no more forwards than the draws?"""
    draws = min(mc_num, ENUMERATED) if estimator == ADAPTIVE else mc_num
    return n <= EXACT_LIMIT and (1 << n) - 1 <= draws + 1


def controlled_masks(n: int, mc_num: int, estimator: str, key: int, start: int = 0) -> MaskDraws:
    """All masks of n tokens where ``enumerates``, else the one that hides all and ``mc_num`` draws. Draws are ordered
    by stratum, half, side. ``start``: the index of the first token in the target."""
    if enumerates(n, mc_num, estimator):
        return replace(enumerate_masks(n), start=start)
    parts, sides, key_ = parts_of(estimator) or frozenset(), _sides(estimator), torch.tensor(key)
    units = torch.arange(mc_num // sides)
    shifts = uniform(key_, Draw.NOISE_LEVEL, units, start)
    strata = 1 if estimator == ADAPTIVE else len(units) // 2
    levels = (units // 2 % strata + shifts) / strata / sides  # of a pair, the smaller mask is drawn: levels below 1/2
    sizes = torch.arange(1, n, dtype=torch.float64)
    chances = (sizes * (n - sizes)).rsqrt() if "sizes" in parts else torch.ones_like(sizes)
    chances /= chances.sum()
    counts = (torch.searchsorted(chances.cumsum(0), levels, right=True) + 1).clamp(max=n - 1)
    lots = uniform(key_, Draw.MASK, units[:, None], torch.arange(start, start + n))
    masks = lots.argsort(1).argsort(1) < counts[:, None]
    if sides == 2:
        masks = torch.stack([masks, ~masks], 1).flatten(0, 1)
    k = masks.sum(1)
    weights = 1.0 / (chances[k - 1] * k * mc_num)
    everything = torch.ones((1, n), dtype=torch.bool)
    return MaskDraws(
        torch.cat([everything, masks]), torch.cat([torch.tensor([1.0 / n]).double(), weights]), mc_num, estimator, start
    )


def combine_controlled(parts: Sequence[MaskDraws], losses: Sequence[Tensor]) -> tuple[float, Tensor]:
    """(log-likelihood, its deviations [U]) in nats from the losses of the masked tokens, float64 [M, n] a part. Parts
    (blocks) are independent; what is fitted is fitted to all of them together."""
    value = -sum(float(part.weights_M @ loss_Mn.sum(1)) for part, loss_Mn in zip(parts, losses, strict=True))
    drawn = [_Units.of(part, loss_Mn) for part, loss_Mn in zip(parts, losses, strict=True) if part.round_size]
    if not drawn:
        return value, torch.zeros(0, dtype=torch.float64)
    units = _Units(*map(torch.cat, zip(*(vars(one).values() for one in drawn), strict=True)))
    loss_UF, sizes_UF = units.loss_UF, units.sizes_UF
    slope_F = _ratio(units.slope_UF2[..., 0], units.slope_UF2[..., 1])
    rest_UF, useful_UF = (
        x_UF - sizes_UF * _ratio(x_UF * sizes_UF, sizes_UF**2) for x_UF in (loss_UF, slope_F * units.control_UF)
    )
    least_UF = (_LEAST * slope_F * units.control_UF) ** 2
    coefficient_F = slope_F * _ratio(rest_UF * useful_UF, useful_UF**2 + least_UF).clamp(0.0, 1.0)
    mean_F = _ratio((loss_UF - coefficient_F * units.control_UF) * sizes_UF, sizes_UF**2)
    # What is fitted to one half is used for the other.
    change_UF = mean_F.flip(0) * (units.expected_UF - sizes_UF) - coefficient_F.flip(0) * units.control_UF
    controlled_UF = loss_UF + change_UF
    return value - float(change_UF.sum()), controlled_UF[:, 1] - controlled_UF[:, 0]


def round_values(parts: Sequence[MaskDraws], losses: Sequence[Tensor], rounds: int) -> Tensor:
    """The log-likelihood as estimated by each of the first ``rounds`` of ``adaptive``, float64 [R]."""
    values_R = torch.zeros(rounds, dtype=torch.float64)
    for part, loss_Mn in zip(parts, losses, strict=True):
        terms_M = part.weights_M * loss_Mn.sum(1)
        if part.round_size == 0:
            values_R -= terms_M.sum()
        else:
            drawn_R = terms_M[1 : 1 + rounds * ROUND].view(rounds, ROUND).sum(1)
            values_R -= terms_M[0] + drawn_R * (part.round_size / ROUND)
    return values_R


def combine_rounds(parts: Sequence[MaskDraws], losses: Sequence[Tensor], rounds: int) -> tuple[float, Tensor]:
    """(log-likelihood, its deviations [R]) in nats after some rounds of ``adaptive``."""
    if not any(part.round_size for part in parts):
        value_R = round_values(parts, losses, 1)
        return float(value_R), value_R[:0]
    values_R = round_values(parts, losses, rounds)
    return float(values_R.mean()), mean_deviations(values_R)


@dataclass(frozen=True)
class _Units:
    """The units (masks, or pairs) of parts, a row a stratum [U], a column a half [F]."""

    loss_UF: Tensor
    """Weighted losses; with the all-masked one, their sum is the bound."""
    control_UF: Tensor
    """The same sums of the all-masked losses minus their mean; the expected value is 0."""
    sizes_UF: Tensor
    """The same sums of ones: how many of the n - 1 sizes a unit stands for."""
    expected_UF: Tensor
    """The expected value of ``sizes_UF``, on average over the strata."""
    slope_UF2: Tensor
    """Numerator and denominator of the slope of losses over all-masked losses, within masks; 0 without control."""

    @classmethod
    def of(cls, part: MaskDraws, loss_Mn: Tensor) -> _Units:
        mask_Mn, weights_M1 = part.masks_Mn[1:].double(), part.weights_M[1:, None]
        k_M1 = mask_Mn.sum(1, keepdim=True)
        hidden_Mn = mask_Mn * (loss_Mn[0] - loss_Mn[0].mean())

        def units(values_Mn: Tensor) -> Tensor:
            return values_Mn.sum(1).view(-1, 2, _sides(part.estimator)).sum(2)

        sizes_UF = units(weights_M1 * mask_Mn)
        apart_Mn = (hidden_Mn - hidden_Mn.sum(1, keepdim=True) / k_M1) * mask_Mn * weights_M1
        least_Mn = _LEAST * weights_M1 * mask_Mn
        slope = [units(apart_Mn * weights_M1 * loss_Mn[1:]), units(apart_Mn**2 + least_Mn**2)]
        control = "control" in (parts_of(part.estimator) or ())
        return cls(
            units(weights_M1 * loss_Mn[1:]),
            units(weights_M1 * hidden_Mn),
            sizes_UF,
            torch.full_like(sizes_UF, (mask_Mn.shape[1] - 1) / sizes_UF.numel()),
            torch.stack(slope, 2) * control,
        )


def _ratio(above_UF: Tensor, below_UF: Tensor) -> Tensor:
    """The ratio of two sums for each half [F]; 0 for 0 / 0."""
    below_F = below_UF.sum(0)
    return torch.where(below_F > 0, above_UF.sum(0) / below_F, 0.0)


def _sides(estimator: str) -> int:
    return 2 if "pairs" in (parts_of(estimator) or ()) else 1
