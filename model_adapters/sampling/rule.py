"""One way of decoding, as data. Families translate their users' fields into a Rule; the loop knows nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Rule:
    """How a row is decoded.

    how many: ``quota`` (a fixed schedule) | ``threshold`` | ``factor``; the latter two go on until the block is full.
    which: ``confidence`` (highest first) | ``random``.
    token: argmax at temperature 0, else a draw from softmax(logits / temperature).
    """

    gen_length: int
    block_length: int
    steps_per_block: int
    how_many: Literal["quota", "threshold", "factor"] = "quota"
    which: Literal["confidence", "random"] = "confidence"
    temperature: float = 0.0
    threshold: float = 1.0
    factor: float = 1.0
    cfg_scale: float = 0.0
    suppressed: tuple[int, ...] = ()
    """Ids whose logits are -inf before a token is chosen."""
    uncounted: tuple[int, ...] = ()
    """Ids whose logits are -inf after the token is chosen, when its confidence is taken."""
    confidence_float64: bool = False
    reference_draws: bool = False
    early_stop: bool = False
    keep_text_after_eos: bool = False
    stop: tuple[str, ...] = ()
    eos_ids: tuple[int, ...] = ()
    record_trajectory: bool = False
    record_margin: bool = False

    @property
    def draws(self) -> bool:
        """Does this rule use random numbers?"""
        return self.temperature > 0 or self.which == "random"

    @property
    def choice(self) -> tuple[object, ...]:
        """Rows that agree in this decide by the same tensor operations."""
        return (
            self.how_many,
            self.which,
            self.temperature,
            self.threshold,
            self.factor,
            self.suppressed,
            self.uncounted,
            self.confidence_float64,
            self.reference_draws,
            self.record_margin,
        )

    @property
    def forwards_per_step(self) -> int:
        return 2 if self.cfg_scale > 0 else 1

    @property
    def step_bound(self) -> int:
        """Most forwards in one block: the schedule, or, where a block goes on until it is full, enough that only a
        model which keeps predicting the mask token itself runs into it (the references would never end)."""
        return self.steps_per_block if self.how_many == "quota" else self.steps_per_block + 2 * self.block_length


def quota_schedule(masks: int, steps: int) -> list[int]:
    """How many positions each step unmasks: ``masks // steps``, the remainder one each to the first steps.

    Source: ML-GSAI/LLaDA generate.py, get_num_transfer_tokens.
    """
    base, rest = divmod(masks, steps)
    return [base + (i < rest) for i in range(steps)]
