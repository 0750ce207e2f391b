"""The absorbing noise of masked diffusion: at level t every response token is masked, on its own, with probability t.

Draws are counter-based: a row's noise is a function of (its key, the step) alone, so it does not depend on which other
rows stand in the batch or on how a batch is cut into micro-batches.

Shape letters: B rows, T packed tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.diffusion.canvas import Batch
from dare_bench.diffusion.rng import Draw, uniform

EPS = 1e-3
"""Lowest noise level: the loss divides by it (ML-GSAI/LLaDA GUIDELINES.md, forward_process)."""


def levels(key_B: Tensor, step: int | Tensor, eps: float = EPS) -> Tensor:
    """A noise level for each row, independent and uniform on (eps, 1): float64 [B]."""
    return eps + (1.0 - eps) * uniform(key_B, Draw.NOISE_LEVEL, step, 0)


def even_levels(key: int, step: int, rows: int, eps: float = EPS) -> Tensor:
    """Levels for a whole batch that cover (eps, 1) evenly, in random order: one random offset, then steps of 1/B;
    float64 [B].

    Each level alone is uniform, so the mean loss is the same; its spread from step to step is smaller. Draw it for the
    batch before cutting it into micro-batches.
    """
    key_B = torch.arange(rows) + key
    offset = uniform(key_B[:1], Draw.NOISE_LEVEL, step, 0)
    even_B = eps + (1.0 - eps) * ((torch.arange(rows, dtype=torch.float64) / rows + offset) % 1.0)
    return even_B[uniform(key_B, Draw.ORDER, step, 0).argsort()]


def draw_masks(batch: Batch, t_B: Tensor, key_B: Tensor, step: int | Tensor) -> Tensor:
    """Which tokens are masked: boolean [T], never True in a prompt. ``step`` may be each row's own, [B]."""
    step_T = step[batch.row_T] if isinstance(step, Tensor) else step
    u_T = uniform(key_B[batch.row_T], Draw.MASK, step_T, batch.column_T)
    return batch.response_T & (u_T < t_B[batch.row_T])
