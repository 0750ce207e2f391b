"""Rows of different length as rows of one length, with padding behind each.

Shape letters: T tokens, those of one row behind those of another, R rows, L the length that all are given.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
