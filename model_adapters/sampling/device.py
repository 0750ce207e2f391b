"""The state of the active rows on the device: a forward, the decision, and what it writes.

Shape letters: T packed tokens, R rows, N open positions, S steps of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dare_bench.model_adapters.sampling.decide import decide
from dare_bench.model_adapters.sampling.guidance import guided_logits
from dare_bench.model_adapters.sampling.packing import Candidates, Pack
from dare_bench.model_adapters.sampling.records import Decision, Positions
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.ties import NearTies
from dare_bench.model_adapters.sampling.uniform import SoftPredictions, with_noise


@dataclass(eq=False)
class DeviceState:
    """What turns read and change. In forwards of static shape that is tensors alone, besides ``kinds`` and ``mask_id``.

    ``canvas_T``: the concatenated canvases. Of each row, [R]: the number of its kind, the tokens of its prompt, the key
    of its random numbers, turns and forwards of its block so far, those without masks (``post_steps_R``), first column
    and most forwards of the block, whether it has no randomness, and the scale of its guidance (0: none);
    ``schedule_RS``: the positions due in each forward of the block, then zeros.
    """

    kinds: Sequence[Sampler]
    """One sampler of each group of rows that decide together."""
    mask_id: int
    canvas_T: Tensor
    kind_R: Tensor
    prompt_R: Tensor
    key_R: Tensor
    turn_R: Tensor
    step_R: Tensor
    post_steps_R: Tensor
    begin_R: Tensor
    limit_R: Tensor
    deterministic_R: Tensor
    scale_R: Tensor
    schedule_RS: Tensor
    going_R: Tensor
    """False for rows whose block is finished, which wait unchanged until the host looks."""
    finite: Tensor
    """False, [], if a largest logit was NaN or infinite."""
    score_T: Tensor | None = None
    """The scores with which tokens were written, beside ``canvas_T``; None if no strategy remasks."""
    ties: NearTies | None = None
    """None: near ties are not recorded."""
    pack: Pack | None = None
    rows: list[RowState] = field(default_factory=list)
    """For strategies, networks and replayed random numbers that need the rows on the host."""
    noised: bool = False
    soft: SoftPredictions | None = None

    def step(self, network: Any) -> tuple[Positions, Decision]:
        """A forward, the decision, and what it writes. With static shapes this has no host synchronization, and takes
        and changes tensors of the state alone.

        Nothing is written unless forward and decision succeed.
        """
        logits_NV, positions = self.forward(network)
        groups = self.groups(positions)
        soft_ND = None
        if self.soft is not None:
            soft_ND = self.soft.predicted(network, logits_NV, positions, self.kinds, groups)
        decision = decide(self.kinds, groups, logits_NV, positions, self.rows)
        decision = replace(decision, after_N=decision.after(positions))
        self.write(positions, decision, soft_ND)
        self.count(positions, decision)
        return positions, decision

    def groups(self, positions: Positions) -> list[Tensor]:
        """The indices of the positions that each of ``kinds`` decides."""
        if self.pack is not None and self.pack.candidates is not None:
            return self.pack.candidates.groups
        if len(self.kinds) == 1:
            return [torch.arange(len(positions.row_N), device=positions.row_N.device)] if self.soft is not None else []
        return [(self.kind_R[positions.row_N] == i).nonzero()[:, 0] for i in range(len(self.kinds))]

    def forward(self, network: Any) -> tuple[Tensor, Positions]:
        """The open positions, and the logits that predict them, [N, V]."""
        pack = self.pack
        assert pack is not None
        tokens_T = self.canvas_T if pack.index_T is None else self.canvas_T[pack.index_T]
        if pack.candidates is None:
            source_N, positions = self._listed(pack, tokens_T)
        else:
            source_N, positions = self._planned(pack.candidates, tokens_T)
        if pack.hidden_T is None:
            logits_NV = self._logits(network, pack, tokens_T, source_N)
        else:
            tokens_T, c = tokens_T.masked_fill(pack.hidden_T, self.mask_id), pack.candidates
            copy_N = source_N + len(pack.tokens.row_T) if c is None or c.copy_N is None else c.copy_N
            logits_NV = guided_logits(network, pack, tokens_T, source_N, copy_N, self.scale_R[positions.row_N])
        return logits_NV, positions

    def _logits(self, network: Any, pack: Pack, tokens_T: Tensor, source_N: Tensor) -> Tensor:
        """Logits at the packed tokens ``source_N``, [N, V]."""
        given: dict[str, Tensor] = {}
        if self.noised:
            keys = self.key_R, self.turn_R, self.prompt_R
            tokens_T = with_noise(pack, tokens_T, self.mask_id, keys, self.rows, network.arch.vocab)
        if getattr(network, "conditions", False):
            self.soft = self.soft or SoftPredictions(self.rows, network, self.canvas_T.device)
            given["soft"] = self.soft.of(pack)
        logits_NV: Tensor = network(tokens_T, pack.column_T, pack.plan, logits_at=source_N, **given).logits
        return logits_NV

    def _listed(self, pack: Pack, tokens_T: Tensor) -> tuple[Tensor, Positions]:
        """The tokens whose states predict the open positions, and the positions: as many as are open now, which the
        host has to know."""
        at = pack.tokens
        masked_T = tokens_T[: len(at.row_T)] == self.mask_id
        open_T = masked_T & at.fillable_T
        if at.editable_T is not None:
            open_T |= at.editable_T
        open_N = open_T.nonzero()[:, 0]
        row_N, column_N = at.row_T[open_N], pack.column_T[open_N]
        positions = self._open(
            row_N=row_N,
            column_N=column_N,
            position_N=column_N - self.prompt_R[row_N],
            place_N=open_N if pack.index_T is None else pack.index_T[open_N],
            current_N=tokens_T[open_N],
            masked_N=masked_T[open_N],
        )
        source_N = open_N if at.shift_T is None else open_N - at.shift_T[open_N]
        return source_N, positions

    def _planned(self, c: Candidates, tokens_T: Tensor) -> tuple[Tensor, Positions]:
        """As :meth:`_listed`, of all positions that may be open while the pack serves: their number is fixed."""
        current_N = tokens_T[c.at_N]
        masked_N = current_N == self.mask_id
        open_N = masked_N if c.editable_N is None else masked_N | c.editable_N
        positions = self._open(
            row_N=c.row_N,
            column_N=c.column_N,
            position_N=c.position_N,
            place_N=c.place_N,
            current_N=current_N,
            masked_N=masked_N,
            live_N=open_N & self.going_R[c.row_N],
            slot_N=c.slot_N,
            width=c.width,
        )
        return c.source_N, positions

    def _open(self, place_N: Tensor, **positions: Any) -> Positions:
        assert self.pack is not None
        step_R = self.step_R.clamp(max=self.schedule_RS.shape[1] - 1)
        return Positions(
            **positions,
            mask_id=self.mask_id,
            place_N=place_N,
            key_R=self.key_R,
            step_R=self.step_R,
            turn_R=self.turn_R,
            quota_R=self.schedule_RS.gather(1, step_R[:, None])[:, 0],
            begin_R=self.begin_R,
            limit_R=self.limit_R,
            deterministic_R=self.deterministic_R,
            post_steps_R=self.post_steps_R,
            masks_outside_R=self.pack.masks_outside_R,
            lengths=[len(row.canvas) for row in self.rows],
            memories=[deepcopy(row.memory) for row in self.rows],
            score_N=None if self.score_T is None else self.score_T[place_N],
        )

    def write(self, positions: Positions, decision: Decision, soft_ND: Tensor | None) -> None:
        """Write a decision into the canvases, and keep the predictions ``soft_ND`` that the next forward is conditioned
        on."""
        place_N = positions.place_N
        if self.soft is not None and soft_ND is not None:
            self.soft.soft_TD[place_N] = soft_ND
        self.finite &= decision.finite
        if self.score_T is not None:
            new_N = decision.written_N & positions.masked_N
            self.score_T[place_N] = torch.where(new_N, decision.score_N.double(), self.score_T[place_N])
        self.canvas_T[place_N] = decision.after(positions)
        for row, memory in zip(self.rows, positions.memories, strict=True):
            row.memory = memory

    def count(self, positions: Positions, decision: Decision) -> None:
        """Count the forward, and note near ties and which blocks are finished."""
        if self.ties is not None:
            self.ties.observe(positions, decision)
        if any(sampler.strategy.edits for sampler in self.kinds):
            self.post_steps_R += positions.full_R & self.going_R
        done_R = self.kinds[0].strategy.finished(positions, decision)
        for i, sampler in enumerate(self.kinds[1:], 1):
            done_R = torch.where(self.kind_R == i, sampler.strategy.finished(positions, decision), done_R)
        self.step_R += self.going_R
        self.turn_R += self.going_R
        self.going_R &= ~done_R

    def read(self) -> dict[str, Tensor]:
        """What the host reads, by name, in one copy; a copy in any case, since a frame's tensors serve other rows
        later."""
        names = ("finite", "going_R", "step_R", "turn_R", "post_steps_R", "canvas_T")
        tables = {name: getattr(self, name).reshape(-1) for name in names}
        if self.ties is not None:
            tables["near_R"] = self.ties.near_R
        tables["canvas_T"] = self.canvas_T[: sum(len(row.canvas) for row in self.rows)]
        read = torch.cat([x.long() for x in tables.values()]).cpu()
        return dict(zip(tables, read.split([len(x) for x in tables.values()]), strict=True))
