"""Is the best choice of a document separated from the others? An answer that is valid whenever the draws are stopped.

Each round of draws gives an estimate of every choice's log-likelihood, from the same masks, and its differences to the
best choice are what counts. Against the hypothesis that such a difference has mean 0, a bettor whose stakes are a
mixture over all effects, N(0, 1 / PRECISION) in standard deviations of a round, has the wealth of :func:`evidence`. If
rounds are normal, of unknown variance, it is a nonnegative martingale, so it exceeds 1 / a with a probability of at
most a, at whatever round one looks (Ville; Lai, Annals of Statistics 4, 1976; Wang and Ramdas, arXiv 2310.03722).
Choices are separated where the interval of means that it does not rule out is on one side of 0.

Shape letters: C choices, R rounds, W ways of comparing choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

PRECISION = 0.1
LEAST_ROUNDS = 4
"""Rounds before the first look: the variance of fewer is hardly known, and they are far from normal."""


def evidence(differences_CR: Tensor) -> Tensor:
    """The logarithm of the wealth against a mean of 0, float64 [C]; 0 where all differences are 0."""
    r = differences_CR.shape[1]
    share_C = differences_CR.sum(1) ** 2 / ((r + PRECISION) * differences_CR.square().sum(1)).clamp(min=1e-300)
    return 0.5 * log(PRECISION / (r + PRECISION)) - 0.5 * r * torch.log1p(-share_C)


def is_separated(values_CR: Tensor, exact_C: Tensor, lengths: Sequence[Tensor], level: float) -> bool:
    """Is the best choice known, in every way of comparing them?

    Args:
        values_CR: the estimates of each round.
        exact_C: choices whose values have no noise.
        lengths: what values are divided by, a tensor [C] for each way of comparing them.
        level: the probability, for each way, that a best choice that is called known is the best.
    """
    count = len(values_CR)
    # The wrong choice is called best if a difference to the right one is ruled out on the wrong side: half of the
    # risk of an interval, for each of the others.
    enough = log((count - 1) / (2 * (1 - level))) if count > 1 else 0.0
    for lengths_C in lengths:
        scaled_CR = values_CR / lengths_C[:, None]
        best = int(scaled_CR.mean(1).argmax())
        others = torch.arange(count) != best
        differences_CR = (scaled_CR[best] - scaled_CR)[others]
        sure_C = exact_C[others] & exact_C[best] & (differences_CR[:, 0] > 0)
        if not bool((sure_C | (evidence(differences_CR) >= enough)).all()):
            return False
    return True
