"""Replay of published samplers: their random numbers, and their order of tied positions.

LLaDA and Fast-dLLM draw uniform float64 noise over the whole window, then uniform float32 for random remasking. The
others call ``torch.multinomial``, which on the CPU divides probabilities by exponential noise and takes the largest:
SDAR and LLaDA2 over all positions of the block, Fast-dLLM v2 over those of a sub-block, Dream over the masked ones
(``origin`` first draws which are written).

Shape letters: n open positions of the row, N of all rows, R rows, W window length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare_bench.model_adapters.replay.counts import left_in_block
from dare_bench.model_adapters.sampling.caches import PrefixCache
from dare_bench.model_adapters.sampling.draws import Draws, NoiseRule
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.strategies.timed import UNIT
from dare_bench.model_adapters.sampling.strategies.wrapped import WrappedStrategy

Noise = tuple[Tensor | None, Tensor | None]
"""For tokens [n, V] and for the order of positions [n], of the row's open positions."""


class Stream:
    """The published code's random numbers for one row."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self._noise: Tensor | None = None
        self._before: tuple[Tensor, Tensor | None] | None = None

    def mark(self) -> None:
        """Before a forward, which may fail: see :meth:`back`."""
        self._before = self.generator.get_state(), self._noise

    def back(self) -> None:
        """The forward failed: its random numbers come again."""
        if self._before is not None:
            self.generator.set_state(self._before[0])
            self._noise = self._before[1]

    def draw(self, row: RowState, vocab: int, due: int) -> Noise:
        """The noise of one forward. ``due`` is the number of positions that the step will write.

        Sources: LLaDA generate.py, Fast-dLLM generate.py, Dream generation_utils.py, SDAR generate.py, LLaDA2 generate.
        """
        noise = _RULES[row.sampler.reference.noise](row, self.generator, vocab, due)
        if row.sampler.reference.noise == "renoise":
            self._noise = self._canvas(row, vocab)
        return noise

    def draws(self, sampler: Sampler, positions: Positions, rows: Sequence[RowState], vocab: int) -> Drawn:
        """Drawn from each row's stream, one row at a time. All rows of this ``Sampler.decision`` draw, also those
        without open positions, as in the published code."""
        active = positions.row_N.unique_consecutive().tolist()
        idle = [i for i, row in enumerate(rows) if row.sampler.decision == sampler.decision and i not in active]
        streams = [(rows[i], rows[i].stream, int(positions.quota_R[i])) for i in [*active, *idle]]
        noise = [stream.draw(row, vocab, due) for row, stream, due in streams if isinstance(stream, Stream)]
        device = positions.row_N.device
        parts = ([part for part in side if part is not None] for side in zip(*noise[: len(active)], strict=True))
        tokens, orders = (torch.cat(some).to(device) if some else None for some in parts) if active else (None, None)
        return Drawn(sampler.reference.noise, tokens, orders)

    def leave_block(self, row: RowState, vocab: int) -> None:
        """Draw for the forwards that the published code makes in a finished block."""
        forwards = left_in_block(row, row.step)
        row = copy(row)
        row.opened = True
        for _ in range(forwards):
            self.draw(row, vocab, 0)
        self._noise = None

    def canvas(self, row: RowState, vocab: int) -> Tensor:
        """Random tokens for the next forward of a row, by column of the block; drawn here for the first one, else
        behind the tokens of the forward before."""
        if self._noise is None:
            self._noise = self._canvas(row, vocab)
        return self._noise

    def _canvas(self, row: RowState, vocab: int) -> Tensor:
        return torch.randint(vocab, (row.sampler.block_length,), generator=self.generator)


@dataclass(frozen=True)
class Drawn(Draws):
    """What published code drew in a forward. ``noise_NV``: uniform float64 for Gumbel, exponential float32 for a
    multinomial; ``order_N`` for the order of positions."""

    rule: NoiseRule
    noise_NV: Tensor | None
    order_N: Tensor | None

    def tokens(
        self, logits_NV: Tensor, kept_NV: Tensor, temperature: float, positions: Positions, cut: slice
    ) -> tuple[Tensor, Tensor]:
        assert self.noise_NV is not None
        if self.rule == "gumbel":
            token_N = gumbel_argmax(logits_NV, self.noise_NV[cut], temperature)
            return token_N, _logprob(logits_NV.double() / temperature, token_N)
        probability_NV = kept_NV.softmax(-1)
        if self.rule in ("masked", "gumbel_order", "canvas", "origin"):  # torch's Categorical normalizes once more
            probability_NV = probability_NV / probability_NV.sum(-1, keepdim=True)
        token_N = (probability_NV / self.noise_NV[cut]).argmax(-1)
        return token_N, _logprob(kept_NV.double(), token_N)

    def order(self, positions: Positions) -> Tensor:
        return super().order(positions) if self.order_N is None else self.order_N

    def weighted_order(self, scaled_N: Tensor, positions: Positions) -> Tensor:
        if self.order_N is None:
            return super().weighted_order(scaled_N, positions)
        rows = int(positions.row_N.max()) + 1 if len(positions.row_N) else 1
        top_R = scaled_N.new_full((rows,), float("-inf")).scatter_reduce_(0, positions.row_N, scaled_N, "amax")
        weight_N = (scaled_N - top_R[positions.row_N]).exp()
        total_R = scaled_N.new_zeros(rows).scatter_add_(0, positions.row_N, weight_N)
        return weight_N / total_R[positions.row_N] / self.order_N


def _logprob(logits_NV: Tensor, token_N: Tensor) -> Tensor:
    """log softmax(logits) at one token of each position."""
    return logits_NV.log_softmax(-1).gather(1, token_N[:, None])[:, 0]


def gumbel_argmax(logits_NV: Tensor, uniform_NV: Tensor, temperature: float) -> Tensor:
    """``argmax exp(logits) / (-log U)^T`` in float64: a draw from softmax(logits / T).

    Float64 on purpose: the published form overflows in float32 (LLaDA generate.py, add_gumbel_noise).
    """
    noise = (-torch.log(uniform_NV)) ** temperature
    return (logits_NV.double().exp() / noise).argmax(-1)


def _exponential(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.empty(shape).exponential_(generator=generator)


def _gumbel(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    low, high = (row.begin, row.stop) if row.sampler.attention.causal else row.window()
    column_n, length = _open_columns(row) - low, high - low
    token = order = None
    if row.sampler.tokens.temperature > 0:
        cache = row.sampler.attention.cache
        if isinstance(cache, PrefixCache) and not cache.block_alone and row.opened:  # the first draw is not used
            torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)
        token = torch.rand((1, length, vocab), dtype=torch.float64, generator=generator)[0][column_n]
    if row.sampler.strategy.score.random:
        order = torch.rand((1, length), generator=generator)[0][column_n]
    return token, order


def _open_columns(row: RowState) -> Tensor:
    """Columns of the window that may change: masks up to the block's end, and the block's tokens if the strategy
    edits; int64 [n]."""
    low, high = row.window()
    column_n = torch.arange(max(low, row.low), min(high, row.stop))
    is_open_n = row.canvas[column_n] == row.mask_id
    return column_n[is_open_n | (column_n >= row.editable_from)]


def _block(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    return _exponential((row.sampler.block_length, vocab), generator)[_open_columns(row) - row.begin], None


def _sub_block(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    column_n = _open_columns(row)
    token = torch.ones((len(column_n), vocab))
    if column_n[0] == row.begin:  # the first token is the argmax
        return token, None
    size: int = row.sampler.strategy.inner.length  # type: ignore[attr-defined]
    low = row.begin + (int(column_n[0]) - row.begin) // size * size
    inside = column_n < low + size
    token[inside] = _exponential((size, vocab), generator)[column_n[inside] - low]
    return token, None


def _masked(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    column_n = _open_columns(row)
    token = None if row.sampler.tokens.temperature == 0 else _exponential((len(column_n), vocab), generator)
    if row.sampler.strategy.score.random and due:
        return token, _exponential((1, len(row.canvas)), generator)[0][column_n]
    return token, None


def _gumbel_order(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    token, _ = _masked(row, generator, vocab, due=0)
    if row.sampler.strategy.score.random and due:
        uniform_n = torch.rand((1, len(row.canvas)), generator=generator)[0][_open_columns(row)]
        return token, -torch.log(uniform_n.clamp(1e-20, 1 - 1e-20))  # exponential: the same order as by Gumbel noise
    return token, None


def _canvas(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    return _exponential((len(row.canvas), vocab), generator)[_open_columns(row)], None


def _origin(row: RowState, generator: torch.Generator, vocab: int, due: int) -> Noise:
    count = len(_open_columns(row))
    order = torch.rand(count, generator=generator)
    if row.sampler.tokens.temperature == 0:
        return None, order
    moved = order < due * UNIT
    token = torch.ones((count, vocab))
    token[moved] = _exponential((int(moved.sum()), vocab), generator)
    return token, order


_RULES: Mapping[NoiseRule, Callable[[RowState, torch.Generator, int, int], Noise]] = {
    "gumbel": _gumbel,
    "block": _block,
    "sub_block": _sub_block,
    "masked": _masked,
    "gumbel_order": _gumbel_order,
    "canvas": _canvas,
    "origin": _origin,
    "renoise": _block,
}


class PublishedTies(WrappedStrategy):
    """Among positions with exactly ``tie_score``, write those that ``torch.topk`` selects.

    For ties by design: with ``confidence_eos_eot_inf`` several positions that propose EOS have confidence 0, after
    top-k or top-p several have confidence 1, and only topk decides between them. The result is a function of the row
    alone.
    """

    source: ClassVar[str] = "ML-GSAI/LLaDA generate.py; DreamLM/Dream generation_utils.py"

    tie_score: float

    def select(self, offer: Offer) -> Decision:
        positions, chosen, score_N = offer.positions, self.inner.select(offer), offer.score_N
        tied_N, written_N = score_N == self.tie_score, chosen.written_N.clone()
        taken_R, left_R = (
            torch.bincount(positions.row_N[tied_N & which_N], minlength=positions.rows)
            for which_N in (written_N, ~written_N)
        )
        for i in ((taken_R > 0) & (left_R > 0)).nonzero()[:, 0].tolist():
            of_row_N = positions.row_N == i
            count = int(written_N[of_row_N].sum())
            written_N[of_row_N] = topk_choice(
                score_N[of_row_N], positions.column_N[of_row_N], positions.lengths[i], count
            )
        return chosen.only(written_N, positions)


def topk_choice(score_n: Tensor, column_n: Tensor, length: int, count: int) -> Tensor:
    """The ``count`` positions of a row that ``torch.topk`` selects on the CPU over the canvas, as in the published
    code."""
    canvas = torch.full((length,), float("-inf"), dtype=score_n.dtype)
    canvas[column_n.cpu()] = score_n.cpu()
    taken = torch.zeros(length, dtype=torch.bool)
    taken[canvas.topk(count).indices] = True
    return taken[column_n.cpu()].to(score_n.device)
