"""Lossless self-speculation: a row stands in a forward in several states, of which all but the first are drafts.

A draft is what the strategy would write next if the logits stayed as they are. One forward gives the logits of all
states of a row: a draft is right if the decision on the state before leads to it, so that a forward makes as many steps
as drafts were right, and one more. Each is the step that would have been made without drafts: the same tokens, random
numbers and counts. Sources: SSD, arXiv 2510.04147; FreeDave, arXiv 2510.00294.

Shape letters: T tokens of the canvases, R states, N open positions, V vocabulary, F rows, D states of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.model_adapters.sampling.decide import joined
from dare_bench.model_adapters.sampling.device import DeviceState, out_of_memory
from dare_bench.model_adapters.sampling.state import RowState

IDLE_TOKENS = {"cpu": 0}
"""Tokens of a forward up to which a device waits for memory and launches, so that drafts take no time, by its type:
none on a CPU, else ``IDLE``."""
IDLE = 184  # an H200 multiplies for as long as it reads the weights in bfloat16
FAR = 1 << 40


def affordable(rows: Sequence[RowState], device: torch.device) -> int:
    """The drafts of rows that share forwards: as many as all of them ask for; fewer, or none, where a forward is bound
    by computing."""
    wanted = min(row.sampler.draft_steps for row in rows)
    if not wanted:
        return 0
    tokens = sum(row.stop - row.begin if row.cache.used else len(row.canvas) for row in rows)
    return max(0, min(wanted, IDLE_TOKENS.get(device.type, IDLE) // tokens - 1))


@dataclass(eq=False)
class Drafts:
    """The states of rows on the device. Those of a row follow each other, with canvases of equal length: a token of
    state d (``depth_T``) of row ``row_T`` is ``stride_T`` tokens behind that of the state before it, and the first
    state's is at ``base_T``."""

    eos_ids: tuple[int, ...]
    state_FD: Tensor
    row_T: Tensor
    base_T: Tensor
    depth_T: Tensor
    stride_T: Tensor
    answer_T: Tensor
    """True behind the prompt."""
    stops_F: Tensor
    """May the row end inside a block, at an EOS?"""
    end_F: Tensor
    """The forwards after which the row ends."""
    saved_F: Tensor
    """Forwards that the row has not needed."""
    drafted_R: Tensor
    """The drafts that the next forward verifies."""
    draft_T: Tensor
    """The canvases before the forward."""
    decided_T: Tensor
    """The canvases after its decisions."""
    made_R: Tensor
    """The states whose decisions were made in the last forward, and were steps of their rows."""
    forward_R: Tensor
    """The forwards of the row before that step, if there were no drafts."""

    @staticmethod
    def tables(rows: Sequence[RowState], count: int, canvas_T: Tensor, slots: int) -> dict[str, Tensor]:
        """The tensors on the host, by name, of rows with so many drafts each, and of ``slots`` states in all."""
        parts: list[tuple[Tensor, ...]] = []
        start, states, null_F = 0, 1 + count, slots // (1 + count) - len(rows)
        for i, row in enumerate(rows):
            length = len(row.canvas)
            column_L, depth_L = torch.arange(length).repeat(states), torch.arange(states).repeat_interleave(length)
            row_L, stride_L = torch.full_like(column_L, i), torch.full_like(column_L, length)
            parts.append((row_L, start + column_L, depth_L, stride_L, column_L >= len(row.prompt)))
            start += states * length
        null = torch.arange(start, len(canvas_T))
        parts.append((torch.full_like(null, slots // states - 1), null, null * 0, null * 0, null < 0))
        names = ("row_T", "base_T", "depth_T", "stride_T", "answer_T")
        drafted_R = torch.tensor([state.drafted for row in rows for state in row.states(count)])
        none_R = torch.zeros(slots, dtype=torch.long)
        return {
            **{name: torch.cat(x) for name, x in zip(names, zip(*parts, strict=True), strict=True)},
            "state_FD": torch.arange(slots).view(-1, states),
            "stops_F": pad(torch.tensor([row.sampler.stopping.stop_in_block for row in rows]), (0, null_F)),
            "end_F": pad(
                torch.tensor([FAR if row.end_forward is None else row.end_forward for row in rows]), (0, null_F)
            ),
            "saved_F": pad(torch.tensor([row.saved for row in rows]), (0, null_F)),
            "drafted_R": pad(drafted_R, (0, slots - len(drafted_R))),
            "draft_T": canvas_T.clone(),
            "decided_T": canvas_T.clone(),
            "made_R": none_R.bool(),
            "forward_R": none_R.clone(),
        }

    def advance(self, device: DeviceState, logits_NV: Tensor) -> None:
        """After a forward whose decisions are written: move each row to the last state that was reached, and draft what
        follows. If memory runs out, the step of each row's first state stays, and nothing is drafted."""
        self.decided_T.copy_(device.canvas_T)
        self.forward_R.copy_(device.forward_R).sub_(1)
        try:
            last_F = self._verify(device)
        except BaseException as error:
            self._without(device, error, made=False)
            return
        reached = None
        try:
            reached = self._state(device)
            self._draft(device, logits_NV, last_F, reached)
        except BaseException as error:
            for (holder, name), x in zip(_tables(device), reached or (), strict=False):
                getattr(holder, name).copy_(x)
            self._without(device, error, made=True)

    def _without(self, device: DeviceState, error: BaseException, made: bool) -> None:
        """Nothing is drafted; ``made``: is it known which steps were made?"""
        if not out_of_memory(error):
            raise error
        if not made:
            self.made_R.zero_()
            self.made_R.view(self.state_FD.shape)[:, 0].fill_(True)
        device.going_R.view(self.state_FD.shape)[:, 1:].fill_(False)
        self.drafted_R.zero_()

    def _verify(self, device: DeviceState) -> Tensor:
        """Which drafts were right; all states of a row become the last one that was reached, whose number is returned,
        [F]."""
        before_T = self.base_T + (self.depth_T - 1).clamp(min=0) * self.stride_T
        right_FD = (self.drafted_R & ~self._any(device.canvas_T[before_T] != self.draft_T))[self.state_FD]
        is_end_T = torch.zeros_like(self.answer_T)
        for eos in self.eos_ids:
            is_end_T |= device.canvas_T == eos
        ended_FD = self._any(is_end_T & self.answer_T)[self.state_FD] & self.stops_F[:, None]
        going_FD = device.going_R[self.state_FD] & (device.forward_R[self.state_FD] < self.end_F[:, None]) & ~ended_FD
        right_FD[:, 1:] &= going_FD[:, :-1]
        right_FD[:, 0].fill_(True)
        made_FD = right_FD.long().cumprod(1)
        last_F = made_FD.sum(1) - 1
        made_R = made_FD.bool().view(-1)
        place_T = self.base_T + last_F[self.row_T] * self.stride_T
        from_R = self.state_FD.gather(1, last_F[:, None].expand_as(self.state_FD)).view(-1)
        reached = [getattr(holder, name)[place_T if name == "canvas_T" else from_R] for holder, name in _tables(device)]
        near_F = None if device.ties is None else (device.ties.near_R & made_R).view(made_FD.shape).any(1)
        # Nothing has changed so far, and nothing below needs memory.
        self.saved_F.add_(last_F)
        self.made_R.copy_(made_R)
        for (holder, name), x in zip(_tables(device), reached, strict=True):
            getattr(holder, name).copy_(x)
        if device.ties is not None and near_F is not None:
            device.ties.near_R.zero_().view(made_FD.shape)[:, 0].copy_(near_F)
        return last_F

    def _any(self, where_T: Tensor) -> Tensor:
        """Is ``where_T`` True anywhere in a state's canvas? bool [R]."""
        state_T = self.state_FD[self.row_T, self.depth_T]
        return torch.zeros_like(self.forward_R).index_add_(0, state_T, where_T.long()) > 0

    def _draft(self, device: DeviceState, logits_NV: Tensor, last_F: Tensor, reached: Sequence[Tensor]) -> None:
        """Decide again and again on the same logits, in the first state of each row; then give each of its states one
        of the results."""
        assert device.pack is not None
        first = device.pack.first
        assert first is not None
        last_N = first.index_N + last_F[first.candidates.row_N // self.state_FD.shape[1]] * first.size_N
        if device.open_N is not None:  # logits of the listed positions alone
            row_N = torch.zeros_like(device.pack.candidates.at_N)
            row_N[device.open_N] = torch.arange(len(device.open_N), device=row_N.device)
            last_N = row_N[last_N]
        states = [reached]
        for _ in range(self.state_FD.shape[1] - 1):
            positions, open_N = device.positions(first.candidates)
            at_N = last_N if open_N is None else last_N[open_N]
            groups = device.groups(logits_NV[at_N], positions, first.candidates)
            decision = joined(groups, [group.select(group.propose()) for group in groups], positions)
            if device.ties is not None:
                device.ties.note_ends(positions, decision)
            device.write(positions, decision)
            device.count(positions, decision)
            states.append(self._state(device))
        canvases, *tables = (torch.stack(x) for x in zip(*states, strict=True))
        drafts = [canvases[self.depth_T, self.base_T], *(x_DR[:, self.state_FD[:, 0]].T.reshape(-1) for x_DR in tables)]
        for (holder, name), x in zip(_tables(device), drafts, strict=True):
            getattr(holder, name).copy_(x)
        self.draft_T.copy_(device.canvas_T)
        self.drafted_R.copy_(device.going_R)

    def _state(self, device: DeviceState) -> list[Tensor]:
        return [getattr(holder, name).clone() for holder, name in _tables(device)]


def _tables(device: DeviceState) -> Iterator[tuple[Any, str]]:
    """What a step changes of a row: what holds it, and its name; the canvases first."""
    yield from ((device, name) for name in ("canvas_T", "step_R", "forward_R", "going_R"))
    if device.ties is not None:
        yield device.ties, "end_R"
