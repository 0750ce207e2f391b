"""Sizes to which the tensors of a static shape are filled, so that a run meets few shapes.

The tokens of a pack and its longest row go to the next bucket, of which there are a few in each octave. All other sizes
only grow during a run, since a larger one costs little, until memory runs out.
"""

from __future__ import annotations

LEAST_TOKENS = 64
MANY_TOKENS = 1024
"""From here on an accelerator computes as long as it is given tokens, so that buckets are finer."""
LEAST_ROW = 32
"""Tokens of the longest row."""


def bucket(size: int, least: int = 1, steps: int = 1) -> int:
    """The smallest size of at least ``size`` and ``least``, of ``steps`` sizes (a power of two) in each octave: with
    two, 4, 6, 8, 12, 16 and so on."""
    size = max(size, least)
    step = max(1, (1 << (size - 1).bit_length()) // 2 // steps)
    return -(-size // step) * step


class Sizes(dict[str, int]):
    """The sizes of a run so far, by name."""

    def grown(self, name: str, size: int) -> int:
        """At least ``size``, and as before wherever that is enough."""
        self[name] = max(self.get(name, 0), bucket(size, steps=2))
        return self[name]
