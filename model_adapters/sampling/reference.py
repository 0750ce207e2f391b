"""How published samplers draw random numbers and count forwards."""

from __future__ import annotations

from collections.abc import Sequence
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


@dataclass
class Ledger:
    """Counts the forwards of the published sampler that are not made for a row here."""

    rule: CountRule
    blocks: int = 0
    """Finished ones."""
    extra: int = 0

    def scheduled(self, schedule: Sequence[int], replays: bool) -> list[int]:
        """The schedule without forwards that would write nothing: trailing ones, and the others too unless their random
        numbers are replayed."""
        last = max((i for i, due in enumerate(schedule) if due), default=-1)
        due = list(schedule[: last + 1])
        forwards = due if replays else [n for n in due if n]
        if self.rule == "forwards":
            self.extra += len(due) - len(forwards)
        return forwards

    def leave_block(self, step: int, planned: int, late_exit: bool) -> int:
        """The forwards of the published sampler in a block that was finished after ``step`` ones: they change nothing.
        Fast-dLLM checks whether the block is full only after a second forward (``late_exit``)."""
        self.blocks += 1
        if self.rule in ("schedule", "blocks"):
            return planned - step
        wasted = int(late_exit and step == 1 and planned > 1)
        self.extra += wasted
        return wasted

    def reject(self, step: int, planned: int, masks: int) -> None:
        """Fast-dLLM's Dream adds a forward for each position that its last scheduled step rejected."""
        if self.rule == "carry":
            self.extra += masks if step == planned else -int(step > planned)
