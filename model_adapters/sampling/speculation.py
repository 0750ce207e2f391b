"""Self-speculation: after each forward the drafts of rows are verified, and new ones are made (``drafts.Drafts``).

Shape letters: D states, F rows, R rows in all states, C tokens of the canvases of one state, N open positions,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dare_bench.model_adapters.batches import out_of_memory
from dare_bench.model_adapters.sampling.decide import joined
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.drafts import Drafts


def advance(drafts: Drafts, device: DeviceState, logits_NV: Tensor) -> None:
    """After a forward whose decisions are written: move each row to the last state that was reached, and draft what
    follows. If memory runs out, the step of each row's first state stays, and nothing is drafted."""
    drafts.decided_T.copy_(device.canvas_T)
    drafts.forward_R.copy_(device.forward_R).sub_(1)
    reached: list[Tensor] = []
    try:
        reached = _verify(drafts, device)
        _draft(drafts, device, logits_NV)
    except BaseException as error:
        if not out_of_memory(error):
            raise
        if reached:
            _place(drafts, device, reached)
        else:  # it is not known which drafts were right
            drafts.last_F.zero_()
        drafts.by_state(device.going_R)[1:].fill_(False)
        drafts.drafted_R.zero_()


def _verify(drafts: Drafts, device: DeviceState) -> list[Tensor]:
    """Find which drafts were right, and move all states of a row to the last one that was reached, which is
    returned. If memory runs out, nothing has changed."""
    wrong_DC = drafts.by_state(device.canvas_T)[:-1] != drafts.by_state(drafts.draft_T)[1:]
    wrong_DF = torch.zeros_like(drafts.by_state(drafts.forward_R)[1:]).index_add_(1, drafts.row_C, wrong_DC.long()) > 0
    going_DF = drafts.by_state(device.going_R) & ~(_ended(drafts, device) & drafts.stops_F)
    right_DF = drafts.by_state(drafts.drafted_R)[1:] & going_DF[:-1] & ~wrong_DF
    last_F = right_DF.long().cumprod(0).sum(0)
    canvas_C = drafts.by_state(device.canvas_T).gather(0, last_F[drafts.row_C][None])[0]
    row_F = torch.arange(len(last_F), device=last_F.device)
    reached = [canvas_C, *(drafts.by_state(x)[last_F, row_F] for x in _tables(device))]
    near_F = None
    if device.ties is not None:  # in a step of the row
        is_step_DF = torch.arange(drafts.states, device=last_F.device)[:, None] <= last_F
        near_F = (drafts.by_state(device.ties.near_R) & is_step_DF).any(0)
    # Nothing below needs memory.
    drafts.last_F.copy_(last_F)
    drafts.saved_F.add_(last_F)
    _place(drafts, device, reached)
    if device.ties is not None and near_F is not None:
        drafts.by_state(device.ties.near_R.zero_())[0].copy_(near_F)
    return reached


def _ended(drafts: Drafts, device: DeviceState) -> Tensor:
    """Has the block an EOS behind the prompt? bool [D, F]."""
    is_end_DC = torch.zeros_like(drafts.by_state(device.canvas_T))
    for eos in drafts.eos_ids:
        is_end_DC += drafts.by_state(device.canvas_T) == eos
    is_end_DC *= drafts.column_C >= drafts.by_state(device.begin_R)[0, drafts.row_C]
    return torch.zeros_like(drafts.by_state(drafts.forward_R)).index_add_(1, drafts.row_C, is_end_DC) > 0


def _draft(drafts: Drafts, device: DeviceState, logits_NV: Tensor) -> None:
    """Decide again and again on the same logits, in the first state of each row; then give each of its states one
    of the results."""
    pack = device.pack
    assert pack is not None and pack.first is not None
    first = pack.first
    at_N = torch.arange(len(first.row_N), device=first.row_N.device) + len(first.row_N) * drafts.last_F[first.row_N]
    if device.open_N is not None:  # logits of the listed positions alone
        place_N = torch.zeros_like(pack.candidates.at_N)
        place_N[device.open_N] = torch.arange(len(device.open_N), device=place_N.device)
        at_N = place_N[at_N]
    states = [_states(drafts, device)]
    for _ in range(drafts.states - 1):
        positions, open_N = device.positions(first)
        groups = device.groups(logits_NV[at_N if open_N is None else at_N[open_N]], positions, first)
        decision = joined(groups, [group.select(group.propose()) for group in groups], positions)
        if device.ties is not None:
            device.ties.note_ends(positions, decision)
        done_R = device.finished(positions, decision)
        device.write(positions, decision)
        device.count(positions, done_R)
        states.append(_states(drafts, device))
    _place(drafts, device, [torch.stack(x) for x in zip(*states, strict=True)])
    drafts.draft_T.copy_(device.canvas_T)
    drafts.drafted_R.copy_(device.going_R)


def _states(drafts: Drafts, device: DeviceState) -> list[Tensor]:
    """Copies of the first state of all rows: the canvases, then what else a step changes."""
    return [drafts.by_state(x)[0].clone() for x in (device.canvas_T, *_tables(device))]


def _place(drafts: Drafts, device: DeviceState, states: Sequence[Tensor]) -> None:
    """Let rows be in these states, [D, ...] or one for all."""
    for table, x in zip((device.canvas_T, *_tables(device)), states, strict=True):
        drafts.by_state(table).copy_(x)


def _tables(device: DeviceState) -> list[Tensor]:
    """What a step changes of a row, besides its canvas."""
    ends = [] if device.ties is None else [device.ties.end_R]
    return [device.step_R, device.forward_R, device.going_R, *ends]
