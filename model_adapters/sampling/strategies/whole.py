"""Strategies to which the whole answer is open.

Shape letters: N open positions, R rows, B blocks of the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from pydantic import PrivateAttr
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.strategies import Strategy


class WholeAnswer(Strategy):
    """A strategy to which the whole answer is open, and which observes the family's blocks by a rule of its own."""

    whole = True

    _block_length: int = PrivateAttr(default=1)

    def for_model(self, eos_ids: Sequence[int], length: int, answer: int) -> Self:
        copy = self.model_copy()
        copy._block_length = length
        return copy

    @property
    def decision(self) -> Strategy:
        return self  # rows with other blocks or steps are decided apart

    def __eq__(self, other: Any) -> bool:
        return super().__eq__(other) and self._block_length == other._block_length

    def __hash__(self) -> int:
        return hash((super().__hash__(), self._block_length))

    @property
    def steps_per_block(self) -> int:
        """Forwards planned for a block of the family."""
        return self.steps or self._block_length

    def block_of(self, positions: Positions) -> Tensor:
        """The family's block of each position, [N]; that of a mask of the prompt is negative."""
        return positions.position_N.div(self._block_length, rounding_mode="floor")

    def current(self, positions: Positions) -> Tensor:
        """True at the masks of each row's first block that has any, [N]."""
        masked_N, block_N = positions.live(positions.masked_N), self.block_of(positions)
        far = torch.iinfo(torch.long).max
        first_R = torch.full_like(positions.key_R, far)
        first_R.scatter_reduce_(0, positions.row_N, torch.where(masked_N, block_N, far), "amin")
        return masked_N & (block_N == first_R[positions.row_N])

    def by_block(self, which_N: Tensor, positions: Positions) -> Tensor:
        """The number of positions of each row and block where ``which_N`` is True, [R, B]; those of the prompt count
        for the first one."""
        blocks = max(positions.lengths) // self._block_length + 1
        at_N = positions.row_N * blocks + self.block_of(positions).clamp(min=0)
        count = positions.key_R.new_zeros(positions.rows * blocks).scatter_add_(0, at_N, which_N.long())
        return count.view(positions.rows, blocks)
