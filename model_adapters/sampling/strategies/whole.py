"""Strategies to which the whole answer is open.

Shape letters: N open positions, R rows, B blocks of the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from pydantic import PrivateAttr
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.strategies import Strategy


class WholeAnswer(Strategy):
    """A strategy to which the whole answer is open, and which observes the family's blocks by a rule of its own."""

    whole = True

    _block_length: int = PrivateAttr(default=1)
    _eos_ids: tuple[int, ...] = PrivateAttr(default=())

    def for_model(self, eos_ids: Sequence[int], length: int, answer: int) -> Self:
        copy = self.model_copy()
        copy._block_length, copy._eos_ids = length, tuple(eos_ids)
        return copy

    @property
    def decision(self) -> Strategy:
        return self  # rows with other blocks or steps are decided apart

    @property
    def steps_per_block(self) -> int:
        """Forwards planned for a block of the family."""
        return self.steps or self._block_length

    def block_of(self, positions: Positions) -> Tensor:
        """The family's block of each position, [N]; that of a mask of the prompt is negative."""
        return positions.position_N.div(self._block_length, rounding_mode="floor")

    def current(self, positions: Positions) -> Tensor:
        """True at the masks of each row's first block that has any, [N]."""
        masked_N = positions.live(positions.masked_N)
        first_R = positions.first(masked_N).div(self._block_length, rounding_mode="floor")
        return masked_N & (self.block_of(positions) == first_R[positions.row_N])

    def is_eos(self, token_N: Tensor) -> Tensor:
        """True where a token is one of the model's EOS, [N]."""
        is_eos_N = torch.zeros_like(token_N, dtype=torch.bool)
        for eos in self._eos_ids:  # a list of them would be copied to the device in each forward
            is_eos_N |= token_N == eos
        return is_eos_N

    def by_block(self, which_N: Tensor, positions: Positions) -> Tensor:
        """The number of positions of each row and block where ``which_N`` is True, [R, B]; those of the prompt count
        for the first one."""
        blocks = max(positions.lengths) // self._block_length + 1
        at_N = positions.row_N * blocks + self.block_of(positions).clamp(min=0)
        count = positions.key_R.new_zeros(positions.rows * blocks).scatter_add_(0, at_N, which_N.long())
        return count.view(positions.rows, blocks)
