"""Attention of rows that begin with clean tokens and end with a canvas (DiffusionGemma).

Clean tokens attend causally; a canvas attends to all clean tokens before it and to itself. In a layer with a window, a
clean token attends to the last ``window`` tokens, itself included, and a canvas to the last ``window - 1`` clean ones.
Source: transformers, models/diffusion_gemma, whose canvas reads a sliding cache of ``window - 1`` tokens.

Shape letters: R rows, L their length, E keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def attends(start_R: Tensor, clean_R: Tensor, length: int, column_RE: Tensor, window: int | None) -> Tensor:
    """Which keys the tokens of each row attend to: boolean [R, 1, L, E].

    Args:
        start_R: the column of each row's first token.
        clean_R: the number of clean tokens at the beginning of each row.
        length: tokens of a row.
        column_RE: the columns of the keys.
        window: None: all.
    """
    place_L = torch.arange(length, device=start_R.device)
    query_RL = start_R[:, None] + place_L
    canvas_RL = place_L >= clean_R[:, None]
    mask_RLE = canvas_RL[:, :, None] | (query_RL[:, :, None] >= column_RE[:, None])
    if window is not None:
        last_RL = torch.minimum(query_RL, (start_R + clean_R)[:, None])  # of a canvas, its first column
        mask_RLE &= column_RE[:, None] > last_RL[:, :, None] - window
    return mask_RLE[:, None]
