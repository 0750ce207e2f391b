"""Lossless self-speculation: a row stands in a forward in several states, of which all but the first are drafts.

A draft is what the strategy would write next if the logits stayed as they are. One forward gives the logits of all
states of a row: a draft is right if the decision on the state before leads to it, so that a forward makes as many steps
as drafts were right, and one more. Each is the step that would have been made without drafts: the same tokens, random
numbers and counts. Sources: SSD, arXiv 2510.04147; FreeDave, arXiv 2510.00294.

Shape letters: D states, F rows, R rows in all states, T tokens of all canvases, C those of one state, N open positions,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.model_adapters.batches import out_of_memory
from dare_bench.model_adapters.sampling.decide import joined
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState

IDLE_TOKENS = {"cpu": 0}
"""Tokens of a forward up to which a device waits for memory and launches, so that drafts take no time, by its type:
none on a CPU, else ``IDLE``."""
IDLE = 184  # an H200 multiplies for as long as it reads the weights in bfloat16


def refusal(sampler: Sampler) -> str | None:
    """Why no steps of a sampler can be drafted; None: they can."""
    if sampler.strategy.edits or sampler.strategy.remasks or sampler.strategy.remembers:
        return (
            f"strategy {sampler.strategy.name!r} writes over tokens or remembers what it did, which cannot be drafted"
        )
    if sampler.replays or sampler.inputs is not None:
        return "random numbers of rng='reference' are drawn as the published code makes forwards, without drafts"
    if sampler.attention.cache.follows_canvas or sampler.reference.count == "carry":
        return "each forward of this sampler depends on what the one before has left open"
    return None


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

    def advance(self, device: DeviceState, logits_NV: Tensor) -> None:
        """After a forward whose decisions are written: move each row to the last state that was reached, and draft what
        follows. If memory runs out, the step of each row's first state stays, and nothing is drafted."""
        self.decided_T.copy_(device.canvas_T)
        self.forward_R.copy_(device.forward_R).sub_(1)
        reached: list[Tensor] = []
        try:
            reached = self._verify(device)
            self._draft(device, logits_NV)
        except BaseException as error:
            if not out_of_memory(error):
                raise
            if reached:
                self._place(device, reached)
            else:  # it is not known which drafts were right
                self.last_F.zero_()
            self._by_state(device.going_R)[1:].fill_(False)
            self.drafted_R.zero_()

    def _verify(self, device: DeviceState) -> list[Tensor]:
        """Find which drafts were right, and move all states of a row to the last one that was reached, which is
        returned. If memory runs out, nothing has changed."""
        wrong_DC = self._by_state(device.canvas_T)[:-1] != self._by_state(self.draft_T)[1:]
        wrong_DF = torch.zeros_like(self._by_state(self.forward_R)[1:]).index_add_(1, self.row_C, wrong_DC.long()) > 0
        going_DF = self._by_state(device.going_R) & ~(self._ended(device) & self.stops_F)
        right_DF = self._by_state(self.drafted_R)[1:] & going_DF[:-1] & ~wrong_DF
        last_F = right_DF.long().cumprod(0).sum(0)
        canvas_C = self._by_state(device.canvas_T).gather(0, last_F[self.row_C][None])[0]
        row_F = torch.arange(len(last_F), device=last_F.device)
        reached = [canvas_C, *(self._by_state(x)[last_F, row_F] for x in _tables(device))]
        near_F = None
        if device.ties is not None:  # in a step of the row
            is_step_DF = torch.arange(self.states, device=last_F.device)[:, None] <= last_F
            near_F = (self._by_state(device.ties.near_R) & is_step_DF).any(0)
        # Nothing below needs memory.
        self.last_F.copy_(last_F)
        self.saved_F.add_(last_F)
        self._place(device, reached)
        if device.ties is not None and near_F is not None:
            self._by_state(device.ties.near_R.zero_())[0].copy_(near_F)
        return reached

    def _ended(self, device: DeviceState) -> Tensor:
        """Has the block an EOS behind the prompt? bool [D, F]."""
        is_end_DC = torch.zeros_like(self._by_state(device.canvas_T))
        for eos in self.eos_ids:
            is_end_DC += self._by_state(device.canvas_T) == eos
        is_end_DC *= self.column_C >= self._by_state(device.begin_R)[0, self.row_C]
        return torch.zeros_like(self._by_state(self.forward_R)).index_add_(1, self.row_C, is_end_DC) > 0

    def _draft(self, device: DeviceState, logits_NV: Tensor) -> None:
        """Decide again and again on the same logits, in the first state of each row; then give each of its states one
        of the results."""
        pack = device.pack
        assert pack is not None and pack.first is not None
        first = pack.first
        at_N = torch.arange(len(first.row_N), device=first.row_N.device) + len(first.row_N) * self.last_F[first.row_N]
        if device.open_N is not None:  # logits of the listed positions alone
            place_N = torch.zeros_like(pack.candidates.at_N)
            place_N[device.open_N] = torch.arange(len(device.open_N), device=place_N.device)
            at_N = place_N[at_N]
        states = [self._states(device)]
        for _ in range(self.states - 1):
            positions, open_N = device.positions(first)
            groups = device.groups(logits_NV[at_N if open_N is None else at_N[open_N]], positions, first)
            decision = joined(groups, [group.select(group.propose()) for group in groups], positions)
            if device.ties is not None:
                device.ties.note_ends(positions, decision)
            done_R = device.finished(positions, decision)
            device.write(positions, decision)
            device.count(positions, done_R)
            states.append(self._states(device))
        self._place(device, [torch.stack(x) for x in zip(*states, strict=True)])
        self.draft_T.copy_(device.canvas_T)
        self.drafted_R.copy_(device.going_R)

    def _by_state(self, table: Tensor) -> Tensor:
        return table.view(self.states, -1)

    def _states(self, device: DeviceState) -> list[Tensor]:
        """Copies of the first state of all rows: the canvases, then what else a step changes."""
        return [self._by_state(x)[0].clone() for x in (device.canvas_T, *_tables(device))]

    def _place(self, device: DeviceState, states: Sequence[Tensor]) -> None:
        """Let rows be in these states, [D, ...] or one for all."""
        for table, x in zip((device.canvas_T, *_tables(device)), states, strict=True):
            self._by_state(table).copy_(x)


def _tables(device: DeviceState) -> list[Tensor]:
    """What a step changes of a row, besides its canvas."""
    ends = [] if device.ties is None else [device.ties.end_R]
    return [device.step_R, device.forward_R, device.going_R, *ends]
