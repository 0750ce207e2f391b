"""What a forward of the decoder is given: random tokens at open positions, and what the forward before predicted.

Shape letters: T packed tokens, N open positions, R rows, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor

from dare_bench.diffusion.rng import Draw, uniform
from dare_bench.model_adapters.sampling.decide import DecisionGroup
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.records import Decision, Offer
from dare_bench.model_adapters.sampling.state import RowState


class SoftPredictions:
    """By place in the concatenated canvases, the mean embedding of what the last forward predicted there, ``soft_TD``;
    zero where a block has had none."""

    def __init__(self, rows: Sequence[RowState]) -> None:
        self.rows, self.network = rows, cast(Any, None)
        offsets = [0, *accumulate(len(row.canvas) for row in rows)]
        self.places = [slice(o + row.begin, o + row.stop) for o, row in zip(offsets, rows, strict=False)]
        self.tokens = offsets[-1]

    def given(self, device: DeviceState, network: Any, tokens_T: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        assert device.pack is not None
        if self.network is None:
            weight_VD, self.network = network.get_input_embeddings().weight, network
            self.soft_TD = weight_VD.new_zeros((self.tokens, weight_VD.shape[1]), device=device.canvas_T.device)
            for row, place in zip(self.rows, self.places, strict=True):
                if row.soft is not None:
                    self.soft_TD[place] = row.soft
        index_T = device.pack.index_T
        soft_TD = self.soft_TD if index_T is None else self.soft_TD[index_T]
        return self._with_noise(device, tokens_T, network.arch.vocab), {"soft": soft_TD}

    def _with_noise(self, device: DeviceState, tokens_T: Tensor, vocab: int) -> Tensor:
        """The tokens of a pack with a new random token at each open position, [T]."""
        assert device.pack is not None
        c = device.pack.candidates
        current_N = tokens_T[c.at_N]
        uniform_N = uniform(device.key_R[c.row_N], Draw.CANVAS, device.forward_R[c.row_N], c.position_N)
        noise_N = (uniform_N * vocab).long()
        for i, row in enumerate(self.rows):
            if row.stream is not None:
                mine = (c.row_N == i).nonzero()[:, 0]
                places = c.column_N[mine] - device.begin_R[i]
                noise_N[mine] = row.stream.canvas(row, vocab)[places.cpu()].to(noise_N.device)
        shown_T = tokens_T.clone()
        shown_T[c.at_N] = torch.where(current_N == device.mask_id, noise_N, current_N)
        return shown_T

    def observe(self, groups: Sequence[DecisionGroup], offers: Sequence[Offer], decisions: Sequence[Decision]) -> None:
        """Keep what a forward predicts at the open positions, at each sampler's temperature."""
        assert self.network is not None
        soft = []
        for group in groups:
            policy, step_R, scaled_NV = group.sampler.tokens, group.positions.step_R, group.logits_NV
            if policy.temperature > 0:
                scaled_NV = scaled_NV / policy.temperatures(step_R[group.positions.row_N])
            soft.append(self.network.soft(scaled_NV))
        for group, soft_ND in zip(groups, soft, strict=True):
            self.soft_TD[group.positions.place_N] = soft_ND

    def sync(self) -> None:
        """Leave the predictions with the rows."""
        if self.network is not None:
            for row, place in zip(self.rows, self.places, strict=True):
                row.soft = self.soft_TD[place].clone()
