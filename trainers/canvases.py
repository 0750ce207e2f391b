"""The canvases of training rows whose source states none: how many EOS tokens follow an answer.

A model that decodes on a canvas of fixed length must have seen canvases of many lengths behind answers of every length,
else it learns one length, or reads an answer's length off its canvas. So each row draws its canvas anew in each epoch:
P(length >= k) = (n / k)^1.25 for an answer of n tokens with its EOS, up to the longest canvas, which takes the rest. It
is one distribution for all answers and prompts, restricted to what fits; canvases have few lengths (:func:`grid`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch
from dare_bench.trainers.steps import Item
from dare_bench.training.rows import TokenRow
from dare_bench.training.tokens import EOS

Padding = Literal["drawn", "longest", "eos_supervised", "masked_out"]
"""What follows an answer: EOS tokens, masked and learned like any token, to the end of a canvas whose length is
``drawn`` for each row and epoch, that of a step's ``longest`` row, or fixed (``eos_supervised``); ``masked_out``: one
EOS."""
EXPONENT = 1.25
"""The tail of drawn lengths."""
LONGEST = 256
"""The longest canvas is at least this, if the model's context has room for it."""
EOS_SHARE = 0.5
"""Maximum share of a row's loss that is of EOS tokens."""


@dataclass(frozen=True)
class Canvases:
    """Canvases for rows without EOS, the same for all rows of an item (a pair).

    Args:
        padding: ``drawn`` for each item; ``longest``: all rows of a step are as long as the longest one with its EOS.
        most: the longest canvas in tokens; answers that do not fit get their own length and one EOS.
        limit: maximum length of a row in tokens.
    """

    padding: Literal["drawn", "longest"]
    most: int
    limit: int
    eos_id: int

    def fill(self, items: Sequence[Item], keys: Sequence[int]) -> tuple[Item, ...]:
        """The items of a step with their EOS tokens; ``keys`` are those of the items' draws."""
        if self.padding == "longest":
            longest = min(max(_needed(item) for item in items), self.limit)
            return tuple(self._filled(item, longest) for item in items)
        return tuple(self._filled(item, self.drawn(item, key)) for item, key in zip(items, keys, strict=True))

    def drawn(self, item: Item, key: int) -> int:
        """The length in tokens of an item's rows: the prompt and a canvas of the grid."""
        prompt = len(item[0].prompt)
        needed = _needed(item) - prompt
        most = max(min(self.most, self.limit - prompt), needed)
        share = 1 - key / 2**63  # uniform in (0, 1]: keys have 63 bits
        length = needed * share ** (-1 / EXPONENT)
        if length >= most:
            return prompt + most
        lengths = grid(needed, most)
        return prompt + lengths[bisect_right(lengths, max(length, lengths[0])) - 1]

    def _filled(self, item: Item, length: int) -> Item:
        return tuple(self._row(row, length) for row in item)

    def _row(self, row: TokenRow, length: int) -> TokenRow:
        if row.cut:
            return row
        room = max(length - len(row.prompt) - len(row.answer), EOS)
        return replace(row, answer=(*row.answer, *[self.eos_id] * room))


def grid(least: int, most: int) -> list[int]:
    """Lengths of canvases from ``least`` to ``most`` tokens: 8, 12, 16, 24, 32, 48, 64, ..., at the end ``most``.

    They are few, so that a length does not tell an answer's, and that rows of equal length attend together. Rounding
    down to them leaves P(length >= k) as it is for those k.
    """
    powers = [8 << i for i in range(most.bit_length())]
    return [length for power in powers for length in (power, power * 3 // 2) if least <= length < most] + [most]


def _needed(item: Item) -> int:
    """Tokens of an item's longest row with its EOS."""
    return max(len(row.prompt) + len(row.answer) + (0 if row.cut else EOS) for row in item)


def eos_factors(batch: Batch, eos_id: int) -> Tensor:
    """A factor of each token's weight, float64 [T]: below 1 for the EOS tokens after an answer that are more than
    :data:`EOS_SHARE` of its row's learned tokens, so that together they weigh as much as that share; 1 for all others.
    """
    rows = len(batch.lengths)
    own_T = batch.response_T & (batch.tokens_T != eos_id)
    last_B = torch.full((rows,), -1).scatter_reduce(0, batch.row_T[own_T], batch.column_T[own_T], "amax")
    eos_T = batch.response_T & (batch.column_T > last_B[batch.row_T])
    eos_B = torch.bincount(batch.row_T[eos_T], minlength=rows).double()
    answer_B = batch.response_lengths_B.double() - eos_B
    factor_B = (EOS_SHARE / (1 - EOS_SHARE) * answer_B.clamp(min=1) / eos_B.clamp(min=1)).clamp(max=1)
    return torch.where(eos_T, factor_B[batch.row_T], 1.0)
