"""Sizes to which the tensors of a static shape are filled, so that a run meets few shapes.

A few sizes in each octave: with four, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20 and so on. The least sizes are such that
smaller ones would cost an accelerator as much.
"""

from __future__ import annotations

LEAST_TOKENS = 256
"""A forward of fewer tokens takes as long: reading the weights takes the time."""
LEAST_ROWS = 8
LEAST_POSITIONS = 128
"""Positions with logits."""


def bucket(size: int, least: int = 1, steps: int = 2) -> int:
    """The smallest size of at least ``size`` and ``least``, of ``steps`` sizes (a power of two) in each octave."""
    size = max(size, least)
    step = max(1, (1 << (size - 1).bit_length()) // 2 // steps)
    return -(-size // step) * step
