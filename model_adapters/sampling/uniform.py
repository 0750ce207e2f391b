"""Uniform noise: a forward is shown random tokens at open positions, and may be given what the one before predicted.

Shape letters: T packed tokens, N open positions, R rows, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.model_adapters.sampling.packing import Pack
from dare_bench.model_adapters.sampling.records import Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState


def with_noise(
    pack: Pack,
    tokens_T: Tensor,
    open_id: int,
    keys: tuple[Tensor, Tensor, Tensor],
    rows: Sequence[RowState],
    vocab: int,
) -> Tensor:
    """The tokens of a pack with a new random token at each open position, [T].

    Args:
        keys: of each row the key of its random numbers, its forwards so far, and the tokens of its prompt, [R] each.
    """
    key_R, turn_R, prompt_R = keys
    at = (tokens_T == open_id).nonzero()[:, 0]
    row_N, column_N = pack.tokens.row_T[at], pack.column_T[at]
    drawn_N = uniform(key_R[row_N], Draw.CANVAS, turn_R[row_N], column_N - prompt_R[row_N])
    noise_N = (drawn_N * vocab).long()
    for i, row in enumerate(rows):
        if row.sampler.replays:
            mine = (row_N == i).nonzero()[:, 0]
            noise_N[mine] = row.stream.canvas(row, vocab)[column_N[mine].cpu() - row.begin].to(noise_N.device)
    shown_T = tokens_T.clone()
    shown_T[at] = noise_N
    return shown_T


class SoftPredictions:
    """By place in the concatenated canvases, the mean embedding of what the last forward predicted there, [T, D]; zero
    where a block has had none."""

    def __init__(self, rows: Sequence[RowState], network: Any, device: torch.device) -> None:
        weight_VD = network.get_input_embeddings().weight
        offsets = [0, *accumulate(len(row.canvas) for row in rows)]
        self.soft_TD = torch.zeros((offsets[-1], weight_VD.shape[1]), dtype=weight_VD.dtype, device=device)
        self.places = [slice(o + row.begin, o + row.stop) for o, row in zip(offsets, rows, strict=False)]
        for row, place in zip(rows, self.places, strict=True):
            if row.soft is not None:
                self.soft_TD[place] = row.soft

    def of(self, pack: Pack) -> Tensor:
        return self.soft_TD if pack.index_T is None else self.soft_TD[pack.index_T]

    def predicted(
        self,
        network: Any,
        logits_NV: Tensor,
        positions: Positions,
        kinds: Sequence[Sampler],
        groups: Sequence[Tensor],
    ) -> Tensor:
        """What a forward predicts at the open positions, [N, D], at each sampler's temperature; ``groups`` are the
        indices of the positions of ``kinds``."""
        soft_ND = self.soft_TD.new_zeros(len(logits_NV), self.soft_TD.shape[1])
        for sampler, at in zip(kinds, groups, strict=True):
            temperature = sampler.tokens.temperatures(positions.step_R[positions.row_N[at]])
            scaled_NV = logits_NV[at] if sampler.tokens.temperature == 0 else logits_NV[at] / temperature
            soft_ND[at] = network.soft(scaled_NV)
        return soft_ND

    def sync(self, rows: Sequence[RowState]) -> None:
        """Leave the predictions with the rows."""
        for row, place in zip(rows, self.places, strict=True):
            row.soft = self.soft_TD[place].clone()
