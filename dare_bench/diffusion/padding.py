"""Rows of a pack as rows of one length, for attention that takes no others.

Shape letters: T packed tokens, R rows, L the length that all are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """``real_RL`` is False on padding. ``index_RL`` is the packed index of each token, where padding repeats the row's
    first token, and ``place_T`` the place of each packed token among the R L padded ones."""

    real_RL: Tensor
    index_RL: Tensor
    place_T: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], longest: int, device: torch.device) -> Padding:
        """Rows of these lengths, some perhaps 0, as rows of ``longest`` tokens."""
        length_R = torch.tensor(lengths, device=device)
        first_R1 = (length_R.cumsum(0) - length_R)[:, None]
        column_L = torch.arange(longest, device=device)
        real_RL = column_L < length_R[:, None]
        index_RL = (first_R1 + torch.where(real_RL, column_L, 0)).clamp(max=sum(lengths) - 1)
        row_T = torch.arange(len(lengths), device=device).repeat_interleave(length_R)
        place_T = torch.arange(sum(lengths), device=device) - first_R1[row_T, 0] + row_T * longest
        return cls(real_RL, index_RL, place_T)

    def mask(self, own: Tensor | None) -> Tensor:
        """The mask among the tokens of the rows, [R, 1, L, L], from that of unpadded rows of that length ([R or 1, 1,
        L, L]; None: all attend to all). Padded queries attend to the row's first token, so that their values are
        finite."""
        seen = self.real_RL[:, None, None] if own is None else own & self.real_RL[:, None, None]
        query_RL = self.real_RL[:, None, :, None]
        first_L = torch.arange(self.real_RL.shape[1], device=self.real_RL.device) == 0
        return seen & query_RL | (~query_RL & first_L)
