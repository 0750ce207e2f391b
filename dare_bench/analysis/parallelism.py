"""Accuracy under parallelism (AUP): one number for how accurate a method stays as it writes more tokens in a forward
pass. As in d3LLM's repository, ``AUP_leaderboard/aup_utils.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

MOST_LOST = 5.0
"""Points of accuracy that a budget may lose to the one with the fewest tokens per forward; others are left out."""
ALPHA = 3.0
"""How steeply a point's weight falls with its distance from the best accuracy."""


def aup(points: Sequence[tuple[float, float]], best: float) -> float:
    """The area below a method's accuracy over its tokens per forward, weighted by closeness to the best accuracy.

    Args:
        points: (tokens per forward, accuracy in percent) of each budget of one method on one task.
        best: the best accuracy of all methods compared on the task, in percent.

    Returns:
        Percent times tokens per forward; a single point with one token per forward has its accuracy.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("AUP needs at least one budget; got none")
    kept = kept_points(points)
    weighted = [(rate, accuracy * _weight(accuracy, best)) for rate, accuracy in kept]
    area = kept[0][0] * kept[0][1]
    return area + sum((b - a) * (y + z) / 2 for (a, y), (b, z) in pairwise(weighted))


def kept_points(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points by their tokens per forward, without those that lose more than ``MOST_LOST``."""
    ordered = sorted(points)
    return [point for point in ordered if point[1] >= ordered[0][1] - MOST_LOST]


def _weight(accuracy: float, best: float) -> float:
    return min(math.exp(-ALPHA * (1 - accuracy / best)), 1.0) if best > 0 else 1.0
