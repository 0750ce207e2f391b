"""Moves of logits by the size of rounding errors.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.types import TIE


@dataclass(frozen=True)
class Nudge:
    """A move of the logits at each position: of the tokens before ``token_N`` in the vocabulary, of the token itself,
    and of those after it. Of size ``TIE`` where the sign is 1 or -1, a number or [N]."""

    token_N: Tensor
    before_N: Tensor | float
    at_N: Tensor | float
    after_N: Tensor | float

    def of(self, logits_NV: Tensor, cut: slice = slice(None), size: float | None = None) -> Tensor:
        """The moved logits of the positions ``cut``, by ``size`` (None: ``TIE``), float32 [N, V]."""
        token_N1 = self.token_N[cut, None]
        id_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
        before, at, after = (
            sign[cut, None] if isinstance(sign, Tensor) else sign for sign in (self.before_N, self.at_N, self.after_N)
        )
        sign_NV = torch.where(id_V < token_N1, before, torch.where(id_V == token_N1, at, after))
        return logits_NV.float() + (TIE if size is None else size) * sign_NV


def against_others(token_N: Tensor, greedy: bool) -> list[Nudge]:
    """What turns the choice of a token: of the most probable one, all others; of one that was drawn by its place among
    the cumulated probabilities, those on one side of it."""
    if greedy:
        return [Nudge(token_N, 1.0, -1.0, 1.0)]
    return [Nudge(token_N, 1.0, -1.0, -1.0), Nudge(token_N, -1.0, -1.0, 1.0)]
