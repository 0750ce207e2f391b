"""Scores of open positions, sorted for each row.

Ties go to the lowest index (a stable descending sort): the order of ``torch.topk`` is unspecified and differs by
device. Published results depend on one kind of tie; see ``published.PublishedTies``.

Shape letters: N positions, the rows one after another, R rows, W most positions of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Positions


@dataclass(frozen=True)
class Ranked:
    """Scores of every row, best first, and each position's rank."""

    sorted_RW: Tensor
    rank_N: Tensor
    count_R: Tensor

    @property
    def open_RW(self) -> Tensor:
        """True where a row has a position of that rank."""
        return torch.arange(self.sorted_RW.shape[1], device=self.sorted_RW.device) < self.count_R[:, None]


def rank(score_N: Tensor, positions: Positions, live_N: Tensor | None = None) -> Ranked:
    """Sort each row's scores: those of open positions, or of the positions ``live_N``. The others rank after them. A
    row without any is all -inf."""
    row_N, slot_N = positions.row_N, positions.slot_N
    live_N = positions.live_N if live_N is None else live_N
    score_N = score_N.clamp(min=torch.finfo(score_N.dtype).min)
    if live_N is not None:
        score_N = torch.where(live_N, score_N, float("-inf"))
    table_RW = score_N.new_full((positions.rows, positions.width), float("-inf"))
    table_RW[row_N, slot_N] = score_N
    sorted_RW, order_RW = table_RW.sort(dim=1, descending=True, stable=True)
    count_R = (sorted_RW > float("-inf")).sum(1)
    rank_N = order_RW.argsort(dim=1)[row_N, slot_N]
    return Ranked(sorted_RW, rank_N, count_R)
