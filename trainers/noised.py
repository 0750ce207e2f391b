"""Methods that learn from noised rows of the data: each draws noise by a schedule and weighs the masked tokens.

A model that decodes on a canvas of fixed length must have seen many lengths behind answers of every length, else it
learns one, or reads an answer's length off its canvas. So a row whose source states no canvas draws one in each epoch:
P(length >= k) = (n / k)^1.25 for an answer of n tokens with its EOS; the longest canvas takes the rest. Canvases have
few lengths (:func:`grid`).
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from dare_bench.diffusion.masked_copies import Batch
from dare_bench.diffusion.schedules import Noise, NoiseSchedule
from dare_bench.errors import UsageError
from dare_bench.seeds import key
from dare_bench.trainers.method import Method
from dare_bench.trainers.options import NoisedOptions
from dare_bench.trainers.steps import Item, NoisedRows, StepShape
from dare_bench.training.rows import TokenRow, Tokens
from dare_bench.training.tokens import EOS
from dare_bench.types import ModelSpec

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
    """Lengths of canvases from ``least`` to ``most`` tokens: 8, 12, 16, 24, 32, 48, 64, ..., at the end ``most``. They
    are few, so that a length does not tell an answer's; rounding down to them leaves P(length >= k) as it is for those
    k."""
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


_DRAWS = 256
"""Minimum number of drawn lengths that an estimate averages."""


class NoisedMethod(Method):
    """A method on noised rows. Subclasses define ``schedule``, ``weigh`` and ``loss``."""

    Options: ClassVar[type[BaseModel]] = NoisedOptions

    def __init__(self, options: Any, spec: ModelSpec, canvas: int | None) -> None:
        super().__init__(options, spec, canvas)
        if options.block_length is not None and spec.block_length is None:
            raise UsageError(f"block_length={options.block_length}: {spec.family} has no attention blocks; omit it")
        _ = self.schedule  # raises for invalid settings

    @property
    @abstractmethod
    def schedule(self) -> NoiseSchedule:
        """The noise schedule."""

    @abstractmethod
    def weigh(self, noise: Noise) -> Tensor:
        """The loss weight of each token of a whole step's copies, float64 [T]; 0 where it is not masked."""

    def resolved_options(self, steps: int | None = None) -> NoisedOptions:
        resolved: NoisedOptions = self.options.resolved(self.canvas, self.spec.block_length)
        return resolved

    def source(self, data: Tokens, shape: StepShape, seed: int, process: int = 0) -> NoisedRows:
        canvases = self.canvases(data)
        return NoisedRows(
            self.items(data),
            self.schedule,
            self.weigh,
            self.spec.mask,
            shape,
            seed,
            process,
            self.fresh_noise,
            None if canvases is None else canvases.fill,
        )

    def lengths(self, data: Tokens) -> list[int]:
        items, canvases = self.items(data), self.canvases(data)
        if canvases is not None:
            items *= -(-_DRAWS // len(items))
            items = list(canvases.fill(items, [key("canvas", 0, place) for place in range(len(items))]))
        return [len(row.prompt) + len(row.answer) for item in items for row in item]

    def canvases(self, data: Tokens) -> Canvases | None:
        """The canvases of rows whose length is not fixed."""
        options = self.resolved_options()
        if options.padding not in ("drawn", "longest"):
            return None
        longest = max(len(row.answer) for item in data.items for row in item) + EOS
        most = options.canvas_length or max(2 * longest, LONGEST)
        limit = self.spec.context_limit if data.limit is None else data.limit
        return Canvases(options.padding, most, limit, self.eos_id)

    @property
    def eos_id(self) -> int:
        """The token that ends answers; raises UsageError."""
        eos = self.spec.eos_ids[0] if self.spec.eos_ids else self.spec.pad_id
        if eos is None:
            raise UsageError("this checkpoint has no EOS id to end answers with; give --model-args eos_id=")
        return eos

    def items(self, data: Tokens) -> list[Item]:
        """Training rows with their supervised EOS tokens, unless these depend on the step (:meth:`canvases`). Raises
        UsageError: a canvas beyond the model's context."""
        options = self.resolved_options()
        return [tuple(self._row(row, options) for row in rows) for rows in data.items]

    def _row(self, row: TokenRow, options: NoisedOptions) -> TokenRow:
        if row.cut or options.padding in ("drawn", "longest"):
            return row
        count = 1 if options.padding == "masked_out" else self._room(row, options.canvas_length) - len(row.answer)
        return replace(row, answer=(*row.answer, *[self.eos_id] * count))

    def _room(self, row: TokenRow, canvas: int | None) -> int:
        """The length of a row's fixed canvas, which ends on the grid of blocks, as decoding does. The canvas of a
        longer answer is the answer and one EOS: answers are never truncated silently."""
        fits = self.spec.context_limit - len(row.prompt)
        if self.options.canvas_length is not None and self.options.canvas_length > fits:
            raise UsageError(
                f"canvas_length={canvas} after {row.where} (a prompt of {len(row.prompt)} tokens) is beyond the "
                f"model's context of {self.spec.context_limit}; give at most {fits}"
            )
        length = max(canvas or 0, len(row.answer) + EOS)
        length += -(len(row.prompt) + length) % (self.spec.block_length or 1)
        return max(len(row.answer) + EOS, min(length, fits))
