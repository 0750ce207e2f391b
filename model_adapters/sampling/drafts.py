"""Lossless self-speculation: a row stands in a forward in several states, of which all but the first are drafts.

A draft is what the strategy would write next if the logits stayed as they are. One forward gives the logits of all
states of a row: a draft is right if the decision on the state before leads to it, so that a forward makes as many steps
as drafts were right, and one more. Each is the step that would have been made without drafts: the same tokens, random
numbers and counts. Sources: SSD, arXiv 2510.04147; FreeDave, arXiv 2510.00294.

Shape letters: D states, F rows, R rows in all states, T tokens of all canvases, C those of one state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.model_adapters.sampling.state import RowState

IDLE_TOKENS = {"cpu": 0}
"""Tokens of a forward up to which a device waits for memory and launches, so that drafts take no time, by its type:
none on a CPU, else ``IDLE``."""
IDLE = 184  # an H200 multiplies for as long as it reads the weights in bfloat16


def affordable(rows: Sequence[RowState], device: torch.device) -> int:
    """The drafts of rows that share forwards: as many as all of them ask for; fewer, or none, where a forward is bound
    by computing, or where a row may end after a given forward."""
    wanted = min(row.sampler.draft_steps for row in rows)
    if not wanted or any(row.end_forward is not None for row in rows):
        return 0
    tokens = sum(row.stop - row.begin if row.cache.used else len(row.canvas) for row in rows)
    return max(0, min(wanted, IDLE_TOKENS.get(device.type, IDLE) // tokens - 1))


@dataclass(eq=False)
class Drafts:
    """The states of rows on the device. Tables hold all rows in the first state, then in the second, and so on: a table
    [R] is [D, F], and the canvases are [D, C]."""

    states: int
    eos_ids: Sequence[int]
    row_C: Tensor
    """Whose token it is."""
    column_C: Tensor
    """Its column; -1 in prompts."""
    stops_F: Tensor
    """May the row end inside a block, at an EOS?"""
    saved_F: Tensor
    """Forwards that the row has not needed."""
    last_F: Tensor
    """The last state whose decision was a step of the row in the last forward; those before it were, too."""
    drafted_R: Tensor
    """The drafts that the next forward verifies."""
    draft_T: Tensor
    """The canvases before the forward."""
    decided_T: Tensor
    """The canvases after its decisions."""
    forward_R: Tensor
    """The forwards of the row before that step, if there were no drafts."""

    @classmethod
    def of(cls, rows: Sequence[RowState], states: int, slots: int, canvas_T: Tensor, eos_ids: Sequence[int]) -> Drafts:
        """The states of rows, on the host; each state has ``slots`` rows, the last ones null."""
        null, length_F = slots - len(rows), torch.tensor([len(row.canvas) for row in rows])
        row_C = torch.arange(len(rows)).repeat_interleave(length_F)
        column_C = torch.cat([torch.arange(len(row.canvas)) for row in rows])
        column_C[column_C < torch.tensor([len(row.prompt) for row in rows])[row_C]] = -1
        missing = len(canvas_T) // states - len(row_C)
        return cls(
            states,
            eos_ids,
            row_C=pad(row_C, (0, missing), value=slots - 1),
            column_C=pad(column_C, (0, missing), value=-1),
            stops_F=pad(torch.tensor([row.sampler.stopping.stop_in_block for row in rows]), (0, null)),
            saved_F=pad(torch.tensor([row.saved for row in rows]), (0, null)),
            last_F=torch.zeros(slots, dtype=torch.long),
            drafted_R=torch.zeros(slots * states, dtype=torch.bool),
            draft_T=canvas_T.clone(),
            decided_T=canvas_T.clone(),
            forward_R=torch.zeros(slots * states, dtype=torch.long),
        )

    def by_state(self, table: Tensor) -> Tensor:
        """A table as [D, ...]."""
        return table.view(self.states, -1)
