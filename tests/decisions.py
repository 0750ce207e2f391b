"""Open positions of a forward, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dare_bench.model_adapters.sampling.records import Positions

MASK = 99


def open_positions(rows: Sequence[int], quota: Sequence[int] = (1,), **values: Any) -> Positions:
    """Positions of these rows, in their columns from 0 on, at the first step; ``values`` replace others."""
    row_N = torch.tensor(rows, dtype=torch.long)
    slots = [rows[:i].count(row) for i, row in enumerate(rows)]
    zero_R, column_N = torch.zeros(len(quota), dtype=torch.long), torch.arange(len(row_N))
    fields = {
        "row_N": row_N,
        "column_N": column_N,
        "position_N": column_N,
        "place_N": column_N,
        "slot_N": torch.tensor(slots, dtype=torch.long),
        "width": max(slots, default=0) + 1,
        "mask_id": MASK,
        "current_N": torch.full_like(row_N, -1),
        "masked_N": torch.ones_like(row_N, dtype=torch.bool),
        "key_R": zero_R,
        "step_R": zero_R,
        "forward_R": zero_R,
        "quota_R": torch.tensor(quota, dtype=torch.long),
        "begin_R": zero_R,
        "limit_R": zero_R + 1,
        "deterministic_R": zero_R == 0,
        "post_steps_R": zero_R,
        "lengths": [len(row_N)] * len(quota),
    }
    return Positions(**{**fields, **values})
