"""Which tokens of a row attend to which, as boolean masks, True where a query may attend to a key; and rows of
different length as rows of one length, with padding behind each.

Shape letters: T tokens, those of one row behind those of another, R rows, L their length, E keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def phased_mask(length: int, block_length: int, phase_R: Tensor) -> Tensor:
    """Attention in blocks of which each row lacks the first ``phase_R`` columns: boolean [R, 1, L, L]."""
    block_RL = (phase_R[:, None] + torch.arange(length, device=phase_R.device)) // block_length
    return (block_RL[:, :, None] >= block_RL[:, None, :])[:, None]


def block_mask(length: int, block_length: int, copies: int, device: torch.device, causal: bool = False) -> Tensor:
    """Attention in blocks on a grid from column 0, among the tokens of a row: boolean [1, 1, L, L]. ``copies`` 2: the
    row is [noisy | clean], whose clean half may attend causally (see :class:`~dare_bench.diffusion.plan.Plan`)."""
    block = torch.arange(length // copies, device=device) // block_length
    clean = block[:, None] >= block[None, :]
    if copies == 1:
        return clean[None, None]
    clean = clean.tril() if causal else clean
    noisy, past = block[:, None] == block[None, :], block[:, None] > block[None, :]
    top, bottom = torch.cat([noisy, past], dim=1), torch.cat([torch.zeros_like(clean), clean], dim=1)
    return torch.cat([top, bottom])[None, None]


def clean_mask(start_R: Tensor, clean_R: Tensor, length: int, column_RE: Tensor, window: int | None) -> Tensor:
    """Attention of rows that begin with clean tokens and end with a canvas (DiffusionGemma): boolean [R, 1, L, E].

    Clean tokens attend causally; a canvas attends to all clean tokens before it and to itself. In a layer with a
    window, a clean token attends to the last ``window`` tokens, itself included, and a canvas to the last
    ``window - 1`` clean ones. Source: transformers, models/diffusion_gemma, whose canvas reads a sliding cache of
    ``window - 1`` tokens.

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


@dataclass(frozen=True)
class Padding:
    """``real_RL`` is False on padding; ``index_RL`` is the index of each token, where padding repeats the row's
    first."""

    real_RL: Tensor
    index_RL: Tensor

    @classmethod
    def of(cls, length_R: Tensor, longest: int, tokens: int) -> Padding:
        """Rows of these lengths, some perhaps 0, with so many tokens in all, as rows of ``longest`` tokens."""
        first_R1 = (length_R.cumsum(0) - length_R)[:, None]
        column_L = torch.arange(longest, device=length_R.device)
        real_RL = column_L < length_R[:, None]
        return cls(real_RL, (first_R1 + torch.where(real_RL, column_L, 0)).clamp(max=tokens - 1))

    @property
    def place_T(self) -> Tensor:
        """The place of each token among the R L padded ones."""
        return self.real_RL.flatten().nonzero()[:, 0]

    def mask(self, own: Tensor | None) -> Tensor:
        """The mask among the tokens of the rows, [R, 1, L, L], from that of unpadded rows of that length ([R or 1, 1,
        L, L]; None: all attend to all). Padded queries attend to the row's first token, so that their values are
        finite."""
        seen = self.real_RL[:, None, None] if own is None else own & self.real_RL[:, None, None]
        query_RL = self.real_RL[:, None, :, None]
        first_L = torch.arange(self.real_RL.shape[1], device=self.real_RL.device) == 0
        return seen & query_RL | (~query_RL & first_L)
