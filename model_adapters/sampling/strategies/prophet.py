"""The answer at once, as soon as the model is sure of it.

Shape letters: N open positions, R rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator
from torch import Tensor

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.sampling.ranking import rank
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings
from dare_bench.model_adapters.sampling.strategies.whole import WholeAnswer


class Thresholds(BaseModel):
    """Gaps in the first and second third of the forwards, and after them."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    early: float = 7.5
    mid: float = 5.0
    late: float = 2.5

    def at(self, share_R: Tensor) -> Tensor:
        """The threshold after these shares of the forwards, [R]."""
        late_R = torch.where(share_R < 0.67, self.mid, self.late)
        return torch.where(share_R < 0.33, self.early, late_R)


class Prophet(WholeAnswer):
    """As ``quota``, until the logits of the best and the second token differ by at least a threshold on average over
    the ``answer_length`` positions of the final answer: then all masks of all blocks take their most probable tokens
    (Prophet, early commit; approximate).

    The final answer begins ``answer_offset`` tokens behind the prompt. ``constraints``, {position: token id}, are on
    the canvas from the start; with them it begins two positions behind the last of these. Forwards of the schedule
    that write nothing are made, since the threshold follows their number.
    """

    name = "prophet"
    source = "Prophet, arXiv 2508.19982, pixeli99/Prophet generate_earlyexit.py"
    rule = "a quota; all at once when the answer is clear"
    edits = True
    float64 = True
    alternatives = 2
    keeps = frozenset({"steps"})
    published = (
        PaperSettings(
            ("llada",),
            ("GSM8K",),
            {},
            {"gen_length": 256, "block_length": 32, "steps": 256},
            "its constraints, 'The answer is' from position 200 on, are token ids of the tokenizer: give them as "
            "constraints; without them, the published harness does not commit early",
        ),
    )

    early_exit_thresholds: Thresholds = Thresholds()
    constraints: tuple[tuple[int, int], ...] = ()
    answer_offset: int = Field(default=0, ge=0)
    answer_length: int = Field(default=5, ge=1)

    @field_validator("constraints", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        pairs = value.items() if isinstance(value, Mapping) else value or ()
        return tuple(sorted((int(place), token) for place, token in pairs))

    @field_serializer("constraints")
    def _by_position(self, value: tuple[tuple[int, int], ...]) -> dict[str, int]:
        return {str(place): token for place, token in value}

    @property
    def answer_begin(self) -> int:
        """The position of the final answer."""
        return self.constraints[-1][0] + 2 if self.constraints else self.answer_offset

    def opening(self, answer: list[int]) -> list[int]:
        given = dict(self.constraints)
        if given and max(given) >= len(answer):
            raise DecodingError(f"strategy 'prophet': constraints at {max(given)} of an answer of {len(answer)} tokens")
        return [given.get(i, token) for i, token in enumerate(answer)]

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return self.steps_per_block * (length // self._block_length)

    def most_forwards(self, length: int) -> int:
        return self.limit(length, ())

    def select(self, offer: Offer) -> Decision:
        positions = offer.positions
        assert offer.best_confidence_NK is not None
        first_N, second_N = offer.best_confidence_NK.unbind(1)
        behind_N = positions.position_N - self.answer_begin
        region_N = positions.live((behind_N >= 0) & (behind_N < self.answer_length))
        gap_N = torch.where(region_N, first_N.log() - second_N.log(), 0.0)
        gap_R = gap_N.new_zeros(positions.rows).scatter_add_(0, positions.row_N, gap_N) / positions.count(region_N)
        share_R = (positions.step_R + 1).double() / positions.limit_R
        sure_R = gap_R >= self.early_exit_thresholds.at(share_R)  # never without a region: NaN
        block_R = positions.step_R // self.steps_per_block
        current_N = positions.masked_N & (self.block_of(positions) == block_R[positions.row_N])
        due_N = rank(offer.score_N, positions, current_N).rank_N < self._due(positions, block_R)[positions.row_N]
        return offer.write(torch.where(sure_R[positions.row_N], positions.masked_N, current_N & due_N))

    def _due(self, positions: Positions, block_R: Tensor) -> Tensor:
        """Positions that the schedule of the rows' blocks writes in this forward, [R]."""
        masks_R = torch.full_like(block_R, self._block_length)
        for place, _ in self.constraints:
            masks_R -= (block_R == place // self._block_length).long()
        step_R = positions.step_R % self.steps_per_block
        return masks_R // self.steps_per_block + (step_R < masks_R % self.steps_per_block)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        return positions.is_last_R | (positions.masks_left(decision) == 0)
