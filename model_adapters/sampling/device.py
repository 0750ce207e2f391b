"""The state of the active rows on the device: a forward, the decision, and what it writes.

Shape letters: T packed tokens, R rows, N open positions, S steps of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.decide import DecisionGroup
from dare_bench.model_adapters.sampling.drafts import Drafts
from dare_bench.model_adapters.sampling.draws import COUNTER
from dare_bench.model_adapters.sampling.logits import guided_where
from dare_bench.model_adapters.sampling.packing import Candidates, Pack
from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.ties import NearTies

ROW_TABLES = ("key_R", "step_R", "forward_R", "begin_R", "limit_R", "deterministic_R", "post_steps_R")
"""What positions take of the rows as it is."""


class NetworkInputs(Protocol):
    """What forwards of some rows are given besides their canvases; it sees what is decided."""

    def given(self, device: DeviceState, network: Any, tokens_T: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """The tokens of a pack as the network is shown them, and its further arguments."""

    def observe(self, groups: Sequence[DecisionGroup], offers: Sequence[Offer], decisions: Sequence[Decision]) -> None:
        """After a decision, before it is written."""

    def sync(self) -> None:
        """Leave with the rows what later forwards of their blocks are given."""


@dataclass(eq=False)
class DeviceState:
    """What forwards read and change. With static shapes that is tensors alone, besides ``kinds`` and ``mask_id``.

    ``canvas_T``: the concatenated canvases. Of each row, [R]: the number of its kind, the key of its random numbers,
    its forwards and those of its block so far, those without masks (``post_steps_R``), first column
    and most forwards of the block, whether it has no randomness, and the scale of its guidance (0: none);
    ``schedule_RS``: the positions due in each forward of the block, then zeros.
    """

    kinds: Sequence[Sampler]
    """One sampler of each group of rows that decide together."""
    mask_id: int
    canvas_T: Tensor
    kind_R: Tensor
    key_R: Tensor
    forward_R: Tensor
    step_R: Tensor
    post_steps_R: Tensor
    begin_R: Tensor
    limit_R: Tensor
    deterministic_R: Tensor
    scale_R: Tensor
    schedule_RS: Tensor
    static: bool
    """Have forwards a static shape?"""
    going_R: Tensor
    """False for rows whose block is finished, which wait unchanged until the host looks."""
    finite: Tensor
    """False, [], if a largest logit was NaN or infinite."""
    carried: dict[str, Tensor] = field(default_factory=dict)
    """What strategies keep beside ``canvas_T``, [T, ...] each."""
    ties: NearTies | None = None
    """None: near ties are not recorded."""
    pack: Pack | None = None
    rows: list[RowState] = field(default_factory=list)
    """For strategies, networks and replayed random numbers that need the rows on the host; with drafts again for each
    state."""
    inputs: NetworkInputs | None = None
    drafts: Drafts | None = None
    """Further states of the rows, if any."""
    open_N: Tensor | None = None
    """The candidates that the last forward listed; None: all."""

    @property
    def observers(self) -> list[NearTies | NetworkInputs]:
        """What is given each offer and decision before it is written."""
        return [observer for observer in (self.ties, self.inputs) if observer is not None]

    def forward(self, network: Any) -> tuple[Tensor, Positions]:
        """The logits that predict the open positions, [N, V], and the positions."""
        pack = self.pack
        assert pack is not None
        tokens_T = self.canvas_T if pack.index_T is None else self.canvas_T[pack.index_T]
        positions, self.open_N = self.positions(pack.candidates)
        c = pack.candidates
        source = [x_N for x_N in (c.source_N, c.copy_N, c.shadow_N) if x_N is not None]
        at_N = torch.cat(source if self.open_N is None else [x_N[self.open_N] for x_N in source])
        given: Mapping[str, Tensor] = {}
        if pack.hidden_T is not None:
            tokens_T = tokens_T.masked_fill(pack.hidden_T, self.mask_id)
        if self.inputs is not None:
            tokens_T, given = self.inputs.given(self, network, tokens_T)
        if c.shadow_N is not None:  # behind each row's window, and not behind all
            at_N, order_N = at_N.sort()
        logits_NV: Tensor = network(tokens_T, pack.column_T, pack.plan, logits_at=at_N, **given).logits
        if c.copy_N is not None:
            logits_NV = guided_where(logits_NV, self.scale_R[positions.row_N])
        if c.shadow_N is not None:
            logits_NV, shadow_NV = logits_NV[order_N.argsort()].chunk(2)
            token_N1 = positions.current_N[:, None]
            verified_N = shadow_NV.double().softmax(-1).gather(1, token_N1)[:, 0]
            positions = replace(positions, verified_N=verified_N)
        return logits_NV, positions

    def positions(self, c: Candidates) -> tuple[Positions, Tensor | None]:
        """The open positions among candidates. In forwards of static shape these are all, of which some are not live;
        else as many as are open now, which the host has to know, and their indices."""
        assert self.pack is not None
        current_N = self.canvas_T[c.place_N]
        masked_N = current_N == self.mask_id
        open_N = masked_N if c.editable_N is None else masked_N | c.editable_N
        live_N = open_N & self.going_R[c.row_N]
        of_N = {name: getattr(c, name) for name in ("row_N", "column_N", "position_N", "place_N", "slot_N")}
        of_N |= {"current_N": current_N, "masked_N": masked_N}
        carried = {name: x_T[c.place_N] for name, x_T in self.carried.items()}
        at_N = None
        if self.static:
            of_N["live_N"] = live_N
        else:
            at_N = live_N.nonzero()[:, 0]
            of_N = {name: x_N[at_N] for name, x_N in of_N.items()}
            carried = {name: x_N[at_N] for name, x_N in carried.items()}
        remembered = any(sampler.strategy.remembers for sampler in self.kinds)
        of_R = {name: getattr(self, name) for name in ROW_TABLES}
        step_R = self.step_R.clamp(max=self.schedule_RS.shape[1] - 1)
        positions = Positions(
            **of_N,
            **of_R,
            width=c.width,
            mask_id=self.mask_id,
            quota_R=self.schedule_RS.gather(1, step_R[:, None])[:, 0],
            masks_outside_R=self.pack.masks_outside_R,
            lengths=[len(row.canvas) for row in self.rows],
            memories=[deepcopy(row.memory) for row in self.rows] if remembered else (),
            carried=carried,
        )
        if any(sampler.strategy.edits for sampler in self.kinds):
            positions = replace(positions, post_steps_R=self.post_steps_R + (positions.full_R & self.going_R))
        return positions, at_N

    def groups(self, logits_NV: Tensor, positions: Positions, c: Candidates | None = None) -> list[DecisionGroup]:
        """The open positions, of the candidates ``c`` or all, by what decides them."""
        assert self.pack is not None
        memories = [row.memory for row in self.rows]

        def group(sampler: Sampler, at_N: Tensor | None) -> DecisionGroup:
            at, logits = (positions, logits_NV) if at_N is None else (positions.only(at_N), logits_NV[at_N])
            if sampler.logits_rule is not None:
                logits = sampler.logits_rule.changed(logits, at, self.canvas_T, self.rows)
            streams = (row.stream for row in self.rows if row.sampler.decision == sampler.decision)
            stream = next(streams, None) if sampler.replays else None
            draws = COUNTER if stream is None else stream.draws(sampler, at, self.rows, logits.shape[1])
            return DecisionGroup(sampler, logits, at, draws, at_N, memories)

        if len(self.kinds) == 1:
            return [group(self.kinds[0], None)]
        at = (c or self.pack.candidates).groups
        if not self.static:
            at = [(self.kind_R[positions.row_N] == i).nonzero()[:, 0] for i in range(len(self.kinds))]
        return [group(sampler, at_N) for sampler, at_N in zip(self.kinds, at, strict=True) if len(at_N)]

    def write(self, positions: Positions, decision: Decision) -> None:
        """Write a decision into the canvases."""
        place_N = positions.place_N
        for name, x_N in decision.carried.items():
            self.carried[name][place_N] = x_N
        self.canvas_T[place_N] = decision.after_N
        for row, memory in zip(self.rows, positions.memories, strict=False):  # none unless a strategy remembers
            row.memory = memory

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        """The rows whose block is finished with a decision, bool [R]."""
        done_R = self.kinds[0].strategy.finished(positions, decision)
        for i, sampler in enumerate(self.kinds[1:], 1):
            done_R = torch.where(self.kind_R == i, sampler.strategy.finished(positions, decision), done_R)
        return done_R

    def count(self, positions: Positions, done_R: Tensor) -> None:
        """Count the forward, and note which blocks are finished."""
        if positions.post_steps_R is not self.post_steps_R:
            self.post_steps_R.copy_(positions.post_steps_R)
        self.step_R += self.going_R
        self.forward_R += self.going_R
        self.going_R.masked_fill_(done_R, False)  # as all above, without memory: the canvases are written

    def read(self, tokens: int) -> dict[str, Tensor]:
        """What the host reads, by name, in one copy: of the first state of rows, whose canvases have so many tokens. A
        copy in any case, since a frame's tensors serve other rows later."""
        tables = {name: getattr(self, name) for name in ("going_R", "step_R", "forward_R", "post_steps_R")}
        tables |= {"finite": self.finite[None], "canvas_T": self.canvas_T[:tokens]}
        if self.drafts is not None:
            tables["saved_F"] = self.drafts.saved_F
        if self.ties is not None:
            tables["near_R"] = self.ties.near_R
        read = torch.cat(list(tables.values())).cpu()
        return dict(zip(tables, read.split([len(x) for x in tables.values()]), strict=True))
