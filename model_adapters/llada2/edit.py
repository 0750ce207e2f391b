"""Confident tokens are written, and written tokens are replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import take_above


class Edit(Strategy):
    """Masked positions whose confidence is above ``threshold`` (at least ``min_transfer``), and written ones whose
    token changes to one above ``edit_threshold``. A block without masks ends when a forward on it edits nothing, or
    after ``max_post_steps`` forwards (LLaDA2.1; exact)."""

    name = "edit"
    source = "LLaDA2.1 generate"
    rule = "all above a confidence; tokens may change"
    exact = "LLaDA2.1"
    edits = True
    static: ClassVar[bool] = True

    threshold: float = Field(ge=0, le=1)
    edit_threshold: float = Field(ge=0, le=1)
    max_post_steps: int = Field(default=16, ge=0)
    min_transfer: int = Field(default=1, ge=1)

    def most_forwards(self, length: int) -> int:
        return length + self.max_post_steps

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return super().limit(length, schedule) + self.max_post_steps

    def select(self, offer: Offer) -> Decision:
        positions, masked_N = offer.positions, offer.positions.masked_N
        ranked = rank(offer.score_N, positions, positions.live(masked_N))
        count_R = take_above(ranked, self.threshold, self.min_transfer)
        other_N = positions.live(~masked_N & (offer.token_N != positions.current_N))
        filled_N, edited_N = ranked.rank_N < count_R[positions.row_N], offer.score_N > self.edit_threshold
        return offer.write(torch.where(masked_N, filled_N, other_N & edited_N))

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        unedited_R = positions.full_R & ~positions.changed(decision)
        exhausted_R = (positions.masks_left(decision) == 0) & (positions.post_steps_R >= self.max_post_steps)
        return positions.is_last_R | unedited_R | exhausted_R | positions.stuck(decision)
