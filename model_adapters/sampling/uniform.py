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
from dare_bench.model_adapters.sampling.decide import DecisionGroup
from dare_bench.model_adapters.sampling.packing import Candidates, Pack
from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.state import RowState


def with_noise(
    candidates: Candidates,
    tokens_T: Tensor,
    open_id: int,
    keys: tuple[Tensor, Tensor, Tensor],
    rows: Sequence[RowState],
    vocab: int,
) -> Tensor:
    """The tokens of a pack with a new random token at each open position, [T].

    Args:
        keys: of each row the key of its random numbers, its forwards so far, and its first column of the block, [R].
    """
    key_R, forward_R, begin_R = keys
    row_N, current_N = candidates.row_N, tokens_T[candidates.at_N]
    noise_N = (uniform(key_R[row_N], Draw.CANVAS, forward_R[row_N], candidates.position_N) * vocab).long()
    for i, row in enumerate(rows):
        if row.stream is not None:
            mine = (row_N == i).nonzero()[:, 0]
            places = candidates.column_N[mine] - begin_R[i]
            noise_N[mine] = row.stream.canvas(row, vocab)[places.cpu()].to(noise_N.device)
    shown_T = tokens_T.clone()
    shown_T[candidates.at_N] = torch.where(current_N == open_id, noise_N, current_N)
    return shown_T


class SoftPredictions:
    """By place in the concatenated canvases, the mean embedding of what the last forward predicted there, [T, D]; zero
    where a block has had none."""

    def __init__(self, rows: Sequence[RowState], network: Any, device: torch.device) -> None:
        self.network = network
        weight_VD = network.get_input_embeddings().weight
        offsets = [0, *accumulate(len(row.canvas) for row in rows)]
        self.soft_TD = torch.zeros((offsets[-1], weight_VD.shape[1]), dtype=weight_VD.dtype, device=device)
        self.places = [slice(o + row.begin, o + row.stop) for o, row in zip(offsets, rows, strict=False)]
        for row, place in zip(rows, self.places, strict=True):
            if row.soft is not None:
                self.soft_TD[place] = row.soft

    def of(self, pack: Pack) -> Tensor:
        return self.soft_TD if pack.index_T is None else self.soft_TD[pack.index_T]

    def observe(self, groups: Sequence[DecisionGroup], offers: Sequence[Offer], decisions: Sequence[Decision]) -> None:
        """Keep what a forward predicts at the open positions, at each sampler's temperature."""
        soft = []
        for group in groups:
            policy, step_R, scaled_NV = group.sampler.tokens, group.positions.step_R, group.logits_NV
            if policy.temperature > 0:
                scaled_NV = scaled_NV / policy.temperatures(step_R[group.positions.row_N])
            soft.append(self.network.soft(scaled_NV))
        for group, soft_ND in zip(groups, soft, strict=True):
            self.soft_TD[group.positions.place_N] = soft_ND

    def sync(self, rows: Sequence[RowState]) -> None:
        """Leave the predictions with the rows."""
        for row, place in zip(rows, self.places, strict=True):
            row.soft = self.soft_TD[place].clone()
