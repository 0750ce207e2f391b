"""The published codes' own random numbers, one row at a time, for parity (``rng="reference"``).

LLaDA and Fast-dLLM draw uniform float64 noise over the whole window, then uniform float32 for random remasking. The
others call ``torch.multinomial``, which on the CPU divides probabilities by exponential noise and takes the largest:
SDAR and LLaDA2 over all positions of the block, Dream over the masked ones (``origin`` first draws which of them move).

Shape letters: n open positions of the row, W window length, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.rule import time_ratios

if TYPE_CHECKING:
    from dare_bench.model_adapters.sampling.rows import Row


@dataclass(frozen=True)
class Draws:
    """Noise of the row's open positions in order: ``token_nV`` (uniform float64, or exponential float32 for a
    multinomial) and ``order_n`` (uniform, or exponential where positions are drawn by a multinomial)."""

    token_nV: Tensor | None = None
    order_n: Tensor | None = None


def _exponential(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.empty(shape).exponential_(generator=generator)


def open_columns(row: Row, window: tuple[int, int]) -> Tensor:
    """Columns of the window that may change: the masked ones up to the block's end, or the block where it is edited."""
    low, high = window
    if row.rule.causal:
        low = max(low, row.begin)
    high = min(high, row.stop)
    column = torch.arange(low, high)
    free = row.canvas[low:high] == row.mask_id
    if row.rule.edit_threshold is not None:
        free |= column >= max(row.begin, len(row.prompt))
    return column[free]


def draw(row: Row, generator: torch.Generator, vocab: int, window: tuple[int, int], take: int) -> Draws:
    """Numbers of one forward. ``take`` is how many positions the step will write, where a draw depends on it.

    Sources: LLaDA generate.py, Fast-dLLM generate.py, Dream generation_utils.py, SDAR generate.py, LLaDA2 generate.
    """
    rule, column_n = row.rule, open_columns(row, window)
    if rule.draw_law == "gumbel":
        return _gumbel(row, generator, vocab, window, column_n)
    if rule.draw_law == "block":
        noise = _exponential((rule.block_length, vocab), generator)
        return Draws(noise[column_n - row.begin])
    if rule.how_many == "bernoulli":
        return _origin(row, generator, vocab, len(column_n))
    token = None if rule.temperature == 0 else _exponential((len(column_n), vocab), generator)
    order = None
    if rule.order_temperature > 0 and take:
        order = _exponential((1, len(row.canvas)), generator)[0][column_n]
    return Draws(token, order)


def _gumbel(row: Row, generator: torch.Generator, vocab: int, window: tuple[int, int], column_n: Tensor) -> Draws:
    rule, length = row.rule, window[1] - window[0]
    token = order = None
    if rule.temperature > 0:
        if rule.cache == "prefix" and row.step > 0:  # drawn twice there, the first unused
            torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)
        token = torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)[0][column_n - window[0]]
    if rule.which == "random":
        order = torch.rand((1, length), generator=generator)[0][column_n - window[0]]
    return Draws(token, order)


def _origin(row: Row, generator: torch.Generator, vocab: int, count: int) -> Draws:
    rule = row.rule
    order = torch.rand(count, generator=generator)
    if rule.temperature == 0:
        return Draws(None, order)
    moved = order < time_ratios(rule.steps_per_block, rule.eps)[row.step]
    token = torch.ones((count, vocab))
    token[moved] = _exponential((int(moved.sum()), vocab), generator)
    return Draws(token, order)
