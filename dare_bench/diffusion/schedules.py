"""Noise schedules by name: how copies of training rows are masked, and the masking probability of each masked token.

A row is noised ``draws`` times; each copy is one row of a packed batch. The sum of log p(token) / p over a row's
copies, divided by ``draws``, is an unbiased estimate of the row's ELBO, except for ``band``, whose levels do not cover
(0, 1). Draws are a function of (the row's key, the draw's number), for ``even`` also of (the batch's key, the copy's
index): the division into micro-batches has no influence.

Shape letters: B rows, R copies (R = B draws), T packed tokens of all copies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Tensor
from torch.nn.functional import conv1d

from dare_bench.diffusion.likelihood import level_counts
from dare_bench.diffusion.masked_copies import Batch
from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.diffusion.schedule_names import CART_Q, EPS, ScheduleName, Weighting
from dare_bench.errors import UsageError


@dataclass(frozen=True)
class NoiseSchedule:
    """A schedule and its parameters. ``eps``: lowest level; ``band``: levels of ``band``; ``block_length``: of
    ``blocks``, counted from a row's first token, as in the samplers."""

    name: ScheduleName = "uniform"
    draws: int = 1
    eps: float = EPS
    band: tuple[float, float] = (0.3, 0.8)
    block_length: int | None = None

    def __post_init__(self) -> None:
        low, high = self.band
        if self.name not in get_args(ScheduleName):
            raise UsageError(f"noise={self.name!r} is not a noise schedule; known: {', '.join(get_args(ScheduleName))}")
        if self.draws < 1 or (self.name == "coupled" and self.draws % 2):
            need = "an even number, since draws come in complementary pairs" if self.name == "coupled" else "at least 1"
            raise UsageError(f"draws={self.draws} with noise={self.name!r} must be {need}")
        if not 0.0 <= low < high <= 1.0:
            raise UsageError(f"band={low},{high} is not valid; give 0 <= low < high <= 1")
        if not 0.0 < self.eps < 1.0:
            raise UsageError(f"eps={self.eps} must be above 0 and below 1: losses are divided by it")
        if self.name == "blocks" and not self.block_length:
            raise UsageError("noise='blocks' needs block_length and a model that attends in blocks; else use 'counts'")


@dataclass(frozen=True)
class CleanCopies:
    """Rows to be noised, each ``draws`` times, side by side: copy r is draw ``draw_R[r]`` of the row with key
    ``key_R[r]``. ``batch_key`` is for schedules that spread levels over the batch."""

    batch: Batch
    key_R: Tensor
    draw_R: Tensor
    batch_key: int


@dataclass(frozen=True)
class Noise:
    """CleanCopies with their masks. ``probability_T`` is p of every token (see the module's docstring), float64, 1
    where it is not masked. ``draws`` is the number of copies of each row."""

    batch: Batch
    masked_T: Tensor
    probability_T: Tensor
    draws: int


def draw(schedule: NoiseSchedule, copies: CleanCopies) -> Noise:
    """Mask ``copies`` by ``schedule``."""
    masked_T, probability_T = _SCHEDULES[schedule.name](schedule, copies)
    masked_T = masked_T & copies.batch.response_T
    return Noise(copies.batch, masked_T, torch.where(masked_T, probability_T, 1.0), schedule.draws)


def weights(noise: Noise, weighting: Weighting, cart_q: float = CART_Q) -> Tensor:
    """The weight of each token's loss within its row, float64 [T]; 0 where it is not masked. ``elbo``: 1 / (p draws),
    so that a row's weighted losses sum to an estimate of its negative ELBO. ``plain``: 1 / draws. ``cart``:
    context-adaptive weights (Dream, arXiv 2508.15487, section 4.2) with rate ``cart_q``, / draws."""
    if weighting == "elbo":
        weight_T = 1.0 / noise.probability_T
    elif weighting == "cart":
        weight_T = cart(noise.batch, noise.masked_T, cart_q)
    else:
        weight_T = torch.ones_like(noise.probability_T)
    return torch.where(noise.masked_T, weight_T, 0.0) / noise.draws


def cart(batch: Batch, masked_T: Tensor, q: float = CART_Q) -> Tensor:
    """w_i = sum over visible tokens j of the row of q (1 - q)^(|i - j| - 1) / 2, float64 [T]; at most 1. Summed up to
    the distance beyond which less than 1e-14 of the weight lies."""
    reach = min(math.ceil(math.log(1e-14) / math.log1p(-q)), max(batch.lengths))
    distance = torch.arange(-reach, reach + 1).abs().double()
    kernel = torch.where(distance > 0, 0.5 * q * (1 - q) ** (distance - 1), 0.0)
    visible = (~masked_T).double().split(list(batch.lengths))
    return torch.cat([conv1d(v[None, None], kernel[None, None], padding=reach)[0, 0] for v in visible])


def levels(key_B: Tensor, step: int | Tensor, eps: float = EPS) -> Tensor:
    """A noise level for each row, independent and uniform on (eps, 1): float64 [B]."""
    return eps + (1.0 - eps) * uniform(key_B, Draw.NOISE_LEVEL, step, 0)


def even_levels(key: int, step: int, rows: int, eps: float = EPS) -> Tensor:
    """Levels of a batch on an even grid over (eps, 1) with a random offset, in random order: float64 [B]. Each level is
    uniform, so the mean loss is the same, but it varies less between steps."""
    key_B = torch.arange(rows) + key
    offset = uniform(key_B[:1], Draw.NOISE_LEVEL, step, 0)
    even_B = eps + (1.0 - eps) * ((torch.arange(rows, dtype=torch.float64) / rows + offset) % 1.0)
    return even_B[uniform(key_B, Draw.ORDER, step, 0).argsort()]


def draw_masks(batch: Batch, level_B: Tensor, key_B: Tensor, step: int | Tensor) -> Tensor:
    """Each response token masked independently with its row's level: boolean [T]. ``step`` may differ by row, [B]."""
    step_T = step[batch.row_T] if isinstance(step, Tensor) else step
    u_T = uniform(key_B[batch.row_T], Draw.MASK, step_T, batch.column_T)
    return batch.response_T & (u_T < level_B[batch.row_T])


def _bernoulli(copies: CleanCopies, level_R: Tensor) -> tuple[Tensor, Tensor]:
    masked_T = draw_masks(copies.batch, level_R, copies.key_R, copies.draw_R)
    return masked_T, level_R[copies.batch.row_T]


def _uniform(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """t ~ U(eps, 1) for every copy (LLaDA, arXiv 2502.09992, eq. 5; SDAR's p = (1 - eps) t + eps is the same
    schedule)."""
    return _bernoulli(copies, levels(copies.key_R, copies.draw_R, schedule.eps))


def _even(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """Levels of the batch on one even grid with a random offset, in random order."""
    return _bernoulli(copies, even_levels(copies.batch_key, 0, len(copies.key_R), schedule.eps))


def _band(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """t ~ U(low, high) (LLaDA2: inclusionAI/dFactory's noise_range)."""
    low, high = schedule.band
    return _bernoulli(copies, low + (high - low) * levels(copies.key_R, copies.draw_R, 0.0))


def ranks(batch: Batch, among_T: Tensor, key_R: Tensor, draw_T: Tensor, group_T: Tensor) -> Tensor:
    """The rank, from 0, of each token of ``among_T`` in a random order of its group (group numbers grow along the
    pack); those of other tokens have no meaning."""
    u_T = uniform(key_R[batch.row_T], Draw.ORDER, draw_T, batch.column_T)
    u_T = torch.where(among_T, u_T, 2.0)  # the others come last
    order_T = (group_T.double() * 4.0 + u_T).argsort()
    rank_T = torch.empty_like(order_T)
    rank_T[order_T] = torch.arange(len(order_T))
    first = torch.bincount(group_T).cumsum(0) - torch.bincount(group_T)
    return rank_T - first[group_T]


def _ranks(copies: CleanCopies, draw_T: Tensor, group_T: Tensor) -> Tensor:
    return ranks(copies.batch, copies.batch.response_T, copies.key_R, draw_T, group_T)


def _counts(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """Exactly k of a row's L tokens: k_j = ((k0 - 1 + floor(j L / n)) mod L) + 1 for draw j of n, k0 uniform on 1..L.
    LLaDA's forward_process (get_log_likelihood.py) rounds k0 + j L / n half to even, and then some k_j are not uniform
    (L = 2, n = 4: draw 1 always masks both tokens); an integer shift keeps every k_j uniform."""
    batch = copies.batch
    length_R = batch.response_lengths_B
    first_R = (uniform(copies.key_R, Draw.NOISE_LEVEL, 0, 0) * length_R).floor().long()
    count_R = (first_R + copies.draw_R * length_R // schedule.draws) % length_R + 1
    rank_T = _ranks(copies, copies.draw_R[batch.row_T], batch.row_T)
    return rank_T < count_R[batch.row_T], (count_R / length_R.double())[batch.row_T]


def _coupled(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """Draws 2i and 2i + 1 mask a set of k tokens and its complement, k uniform on 0..L, with p = k / (L + 1) and
    (L - k) / (L + 1) (ESPO, arXiv 2512.03759)."""
    batch = copies.batch
    length_R = batch.response_lengths_B
    pair_R, second_R = copies.draw_R // 2, copies.draw_R % 2 == 1
    count_R = (uniform(copies.key_R, Draw.NOISE_LEVEL, pair_R, 0) * (length_R + 1)).floor().long().clamp(max=length_R)
    inside_T = _ranks(copies, pair_R[batch.row_T], batch.row_T) < count_R[batch.row_T]
    masked_T = torch.where(second_R[batch.row_T], ~inside_T, inside_T)
    masked_R = torch.where(second_R, length_R - count_R, count_R)
    return masked_T, (masked_R.clamp(min=1) / (length_R + 1).double())[batch.row_T]


def _blocks(schedule: NoiseSchedule, copies: CleanCopies) -> tuple[Tensor, Tensor]:
    """k of the s response tokens of every block, p = k / s; the levels of a row's (draw, block) cells lie on one even
    grid with a random offset (EBPO, LLaDA2.1 report, arXiv 2602.08676)."""
    batch = copies.batch
    assert schedule.block_length is not None
    block_T = batch.column_T // schedule.block_length
    prompt_R = torch.tensor(batch.lengths) - batch.response_lengths_B
    first_R = prompt_R // schedule.block_length
    cells_R = (torch.tensor(batch.lengths) - 1) // schedule.block_length - first_R + 1
    cell_T = copies.draw_R[batch.row_T] * cells_R[batch.row_T] + (block_T - first_R[batch.row_T]).clamp(min=0)
    offset_R = uniform(copies.key_R, Draw.NOISE_LEVEL, 0, 0)
    level_T = (cell_T.double() / (cells_R * schedule.draws)[batch.row_T] + offset_R[batch.row_T]) % 1.0
    width = int(block_T.max()) + 1
    group_T = batch.row_T * width + block_T
    size_T = torch.bincount(group_T[batch.response_T], minlength=int(group_T.max()) + 1)[group_T].clamp(min=1)
    count_T = level_counts(level_T, size_T)
    rank_T = _ranks(copies, copies.draw_R[batch.row_T], group_T)
    return rank_T < count_T, count_T / size_T.double()


_SCHEDULES: dict[str, Callable[[NoiseSchedule, CleanCopies], tuple[Tensor, Tensor]]] = {
    "uniform": _uniform,
    "even": _even,
    "counts": _counts,
    "coupled": _coupled,
    "blocks": _blocks,
    "band": _band,
}
