"""Each family's supervised loss on a packed batch, with noise that is a function of (seed, step)."""

from __future__ import annotations

from typing import Any

import torch
from recipe import EPS, Recipe
from torch import Tensor

from dare_bench.diffusion.blocks import band_levels, mean_weights, two_copies
from dare_bench.diffusion.canvas import Batch
from dare_bench.diffusion.losses import noisy, predicted_from, weighted_sum, weights
from dare_bench.diffusion.noise import draw_masks, even_levels
from dare_bench.model_adapters.backbone import Plan
from dare_bench.seeds import key


def _draw(batch: Batch, recipe: Recipe, step: int, band: bool = False) -> tuple[Tensor, Tensor]:
    """Levels [B] and masks [T]; LLaDA2's levels are from its band."""
    rows, stream = len(batch.lengths), key("tiny noise", recipe.seed)
    t_B = band_levels(stream, step, rows) if band else even_levels(stream, step, rows, EPS)
    return t_B, draw_masks(batch, t_B, torch.arange(rows) + stream, step)


def masked(network: Any, batch: Batch, recipe: Recipe, step: int, shifted: bool = False) -> Tensor:
    """Rows attend within themselves, in both directions. ``shifted``: the token before predicts."""
    t_B, masked_T = _draw(batch, recipe, step)
    tokens_T, at_N, targets_N = noisy(batch, masked_T, network.config.mask_token_id)
    from_N = predicted_from(batch, at_N) if shifted else at_N
    nll_N = network(tokens_T, batch.column_T, Plan(batch.lengths), from_N, targets_N).nll
    return weighted_sum(nll_N, weights(batch, masked_T, t_B))


def shifted(network: Any, batch: Batch, recipe: Recipe, step: int) -> Tensor:
    """Dream's."""
    return masked(network, batch, recipe, step, shifted=True)


def _two_copies_nll(network: Any, batch: Batch, masked_T: Tensor, recipe: Recipe) -> Tensor:
    pair = two_copies(batch, masked_T, network.config.mask_token_id)
    plan = Plan(pair.lengths, recipe.block_length, copies=2)
    return network(pair.tokens_U, plan.positions(), plan, pair.at_N, pair.targets_N).nll


def block_elbo(network: Any, batch: Batch, recipe: Recipe, step: int) -> Tensor:
    """SDAR's: cross-entropy over level and length."""
    t_B, masked_T = _draw(batch, recipe, step)
    return weighted_sum(_two_copies_nll(network, batch, masked_T, recipe), weights(batch, masked_T, t_B))


def block_mean(network: Any, batch: Batch, recipe: Recipe, step: int) -> Tensor:
    """LLaDA2's: plain mean over the masked tokens, middle levels only."""
    _, masked_T = _draw(batch, recipe, step, band=True)
    return weighted_sum(_two_copies_nll(network, batch, masked_T, recipe), mean_weights(masked_T))
