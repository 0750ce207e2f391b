"""How published samplers draw random numbers and count forwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NoiseRule = Literal["gumbel", "block", "sub_block", "masked", "gumbel_order", "canvas", "origin", "renoise"]
CountRule = Literal["schedule", "blocks", "forwards", "commit", "prefix", "commit_ahead", "carry"]


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
