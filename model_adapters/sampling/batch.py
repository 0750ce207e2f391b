"""The active rows on the host: what their forwards are given, and what is read back.

Shape letters: T packed tokens, R rows, S steps of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_bench.errors import ModelOutputError
from dare_bench.model_adapters.sampling.buckets import Sizes
from dare_bench.model_adapters.sampling.device import DeviceState
from dare_bench.model_adapters.sampling.drafts import Drafts
from dare_bench.model_adapters.sampling.packing import Packer
from dare_bench.model_adapters.sampling.recorder import Recorder
from dare_bench.model_adapters.sampling.records import Decision, Positions
from dare_bench.model_adapters.sampling.row_cache import RowCache
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.state import RowState
from dare_bench.model_adapters.sampling.strategies import Carried
from dare_bench.model_adapters.sampling.ties import NearTies
from dare_bench.model_adapters.upload import upload, uploaded


class ActiveRows:
    """The active rows on the host, and their canvases and counters on the device (``device``). The rows are fixed: a
    new object is built when a row enters or leaves. The input of a forward is a :class:`Pack`, rebuilt whenever a
    window moves. With drafts, each table on the device holds all rows in a first state, then in a second, and so on."""

    def __init__(
        self,
        rows: Iterable[RowState],
        mask_id: int,
        device: torch.device,
        cache: RowCache | None = None,
        sizes: Sizes | None = None,
        drafts: int = 0,
    ) -> None:
        self.rows = rows = sorted(rows, key=lambda row: len(row.canvas))
        samplers = [row.sampler for row in rows]
        kinds = list({sampler.decision: sampler for sampler in samplers}.values())
        self.at, self.cache, self.states = device, cache, 1 + drafts
        self.lengths = [len(row.canvas) for row in rows]
        self.replayed = any(sampler.replays for sampler in samplers)
        self.inputs = samplers[0].inputs
        fixed = all(kind.strategy.static and kind.logits_rule is None for kind in kinds)
        static = fixed and not self.replayed and self.inputs is None
        self.sizes = sizes if static else None
        """If packs are filled with null rows and tokens."""
        self.slots, self.canvas = self._grown("rows", len(rows)), self._grown("canvas", sum(self.lengths))
        """Rows and tokens of a state in the tables on the device; the last ones are null."""
        number = {sampler.decision: i for i, sampler in enumerate(kinds)}
        self.kinds = [number[sampler.decision] for sampler in samplers]
        self.blocks = self._block_tables()
        """What each row's block adds to the tables on the device, on the host."""
        self.device: DeviceState = uploaded(self._state(kinds, mask_id), (DeviceState, NearTies, Drafts), device)
        self.device.carried = self._carried()
        self.packer = Packer(rows, device, cache, self.kinds, self.slots, self.canvas, self.states, self.sizes)
        self.tokens_done = 0
        self.recorder = Recorder.of(rows, self.slots)
        self.seen: Sequence[Tensor] = [row.canvas for row in rows]
        """The canvases when the host has last looked."""
        self.followed = any(row.cache.follows_canvas for row in rows)
        self.may_end = any(row.end_forward is not None for row in rows)
        self.look_in = 0  # forwards until the host looks; 0: to be computed
        self.read: dict[str, Tensor] | None = None
        """What the host has read of the device since the last forward."""

    def _state(self, kinds: Sequence[Sampler], mask_id: int) -> DeviceState:
        """What :attr:`device` holds, on the host."""
        rows, samplers = self.rows, [row.sampler for row in self.rows]
        state = DeviceState(
            kinds,
            mask_id,
            canvas_T=self._along([row.canvas for row in rows]),
            kind_R=self._by_row(self.kinds),
            key_R=self._by_row(row.key for row in rows),
            forward_R=self._by_row(row.forward for row in rows),
            deterministic_R=self._by_row((not sampler.draws for sampler in samplers), torch.bool),
            scale_R=self._by_row((sampler.attention.cfg_scale for sampler in samplers), torch.float32),
            finite=torch.ones((), dtype=torch.bool),
            static=self.sizes is not None,
            rows=self.rows * self.states,
            inputs=self.inputs and self.inputs(rows),
            **self.blocks,
        )
        eos_ids = tuple(sorted({token for sampler in samplers for token in sampler.stopping.eos_ids}))
        if any(sampler.record_near_tie for sampler in samplers):
            state.ties = NearTies.of(rows, self._by_row, eos_ids)
        if self.states > 1:
            state.drafts = Drafts.of(rows, self.states, self.slots, state.canvas_T, eos_ids)
        return state

    def _block_tables(self) -> dict[str, Any]:
        """Tables of the rows' blocks."""
        tables: dict[str, Any] = {name: self._by_row(()) for name in ("step_R", "post_steps_R", "begin_R", "limit_R")}
        tables |= {"going_R": tables["step_R"] > 0, "schedule_RS": tables["step_R"][:, None]}
        return self._entered(tables, range(len(self.rows)))

    def _entered(self, tables: dict[str, Any], moved: Sequence[int]) -> dict[str, Any]:
        """The tables when these rows have entered blocks, and nothing of them is drafted. The others keep theirs."""
        longest = max(len(row.schedule) for row in self.rows)
        schedule_RS = tables["schedule_RS"]  # nothing is due after a schedule's end
        width = max(schedule_RS.shape[1], self._grown("schedule", longest + 1))
        tables["schedule_RS"] = pad(schedule_RS, (0, width - schedule_RS.shape[1]))
        rows, at_M = [self.rows[i] for i in moved], torch.tensor(moved)
        new = {f"{name}_R": [getattr(row, name) for row in rows] for name in ("step", "post_steps", "begin", "limit")}
        new["schedule_RS"] = [[*row.schedule, *[0] * (width - len(row.schedule))] for row in rows]
        for name, values in new.items():
            tables[name].unflatten(0, (self.states, self.slots))[:, at_M] = torch.tensor(values)
        tables["going_R"].view(self.states, self.slots)[:, at_M] = (torch.arange(self.states) == 0)[:, None]
        return tables

    def _along(self, parts: list[Tensor]) -> Tensor:
        """Tensors of the rows beside their canvases, then zeros for null tokens: [T, ...]."""
        null = parts[0].new_zeros(self.canvas - sum(self.lengths), *parts[0].shape[1:])
        return torch.cat([*parts, null] * self.states)

    def _carried(self) -> dict[str, Tensor]:
        """What strategies keep beside the canvases. It is made and stays on the device, since it may be as large as
        the vocabulary for each token."""
        kinds = {name: kind for row in self.rows for name, kind in row.carries.items()}

        def of(row: RowState, name: str, kind: Carried) -> Tensor:
            new = (len(row.canvas), *kind.size), kind.fill
            x_L = row.carried.get(name)
            return torch.full(*new, dtype=kind.dtype, device=self.at) if x_L is None else x_L

        return {name: self._along([of(row, name, kind) for row in self.rows]) for name, kind in kinds.items()}

    def _grown(self, name: str, size: int) -> int:
        """A size with room for at least one null entry, if they are used."""
        return size if self.sizes is None else self.sizes.grown(name, size + 1)

    def _by_row(self, values: Iterable[float], dtype: torch.dtype = torch.long) -> Tensor:
        """A value for each row, then zeros for the null rows: [R]."""
        of_rows = [*values]
        return torch.tensor([*of_rows, *[0] * (self.slots - len(of_rows))] * self.states, dtype=dtype)

    def pack(self) -> None:
        """Before a forward: pack the rows, if their windows have moved."""
        if self.replayed or (self.followed and self.device.pack is None):
            self.sync()
            for row in self.rows:
                if row.stream is not None:
                    row.stream.mark()
        self.read = None
        if self.device.pack is not None:
            return
        if not self.look_in:  # after each forward, if the host lists the open positions
            least = 1 if self.sizes is None else min(row.least_forwards() for row in self.rows)
            self.look_in = -(-least // self.states)
        self.device.pack = self.packer.pack()
        self.tokens_done = self.device.pack.plan.tokens

    def observe(self, positions: Positions, decision: Decision) -> None:
        """After a forward: records, and the cache."""
        pack = self.device.pack
        assert pack is not None
        if self.recorder is not None:
            self.recorder.observe(self.device, positions, decision)
        if self.cache is not None:
            self.cache.committed()
        if pack.fresh or not pack.whole:
            self.device.pack = None
            for row in self.rows:  # windows of cached blocks depend on whether a row is at its first forward
                row.opened = True

    def look(self) -> list[int]:
        """The rows whose block is finished, if it is time to look: this waits for the device.

        Raises:
            ModelOutputError: NaN or infinite logits since the host has last looked.
        """
        self.look_in -= 1
        if self.look_in > 0:
            return []
        self.look_in = 1
        self.read = self.device.read(sum(self.lengths))
        if not self.read["finite"]:
            raise ModelOutputError(
                "the network gave NaN or infinite logits; logits must be finite: check the weights (dare-bench "
                "validate) and the dtype"
            )
        before, self.seen = self.seen, self.read["canvas_T"].split(self.lengths)
        states = zip(self.rows, self.read["going_R"].tolist(), before, self.seen, strict=False)  # no null rows
        return [i for i, (row, going, *seen) in enumerate(states) if not going or self._ends_inside(row, *seen)]

    def _ends_inside(self, row: RowState, before_L: Tensor, now_L: Tensor) -> bool:
        block = slice(row.first_response, row.stop)
        return row.sampler.stopping.ends_inside(before_L[block], now_L[block], self.device.mask_id)

    def abandon(self) -> None:
        """The forward failed: its pack is built again."""
        if self.cache is not None:
            self.cache.abandoned()
        if self.device.pack is not None:
            self.device.pack = None
            for row in self.rows:
                if row.stream is not None:
                    row.stream.back()

    def ended(self) -> list[int]:
        """The rows that end here, whether their blocks are finished or not; the host looks after each forward of these
        rows."""
        if not self.may_end:
            return []
        forwards = [row.forward for row in self.rows] if self.read is None else self.read["forward_R"].tolist()
        rows = enumerate(zip(self.rows, forwards, strict=False))  # then null rows
        return [i for i, (row, forward) in rows if row.end_forward is not None and forward >= row.end_forward]

    def sync(self) -> None:
        """Copy canvases and counters to the rows."""
        device = self.device
        read = device.read(sum(self.lengths)) if self.read is None else self.read
        self.read, canvases = None, read["canvas_T"].split(self.lengths)
        self.blocks |= {name: read[name].to(self.blocks[name].dtype) for name in ("step_R", "post_steps_R", "going_R")}
        counters = (read[name].tolist() for name in ("step_R", "forward_R", "post_steps_R"))
        for row, canvas, *counts in zip(self.rows, canvases, *counters, strict=False):  # then null rows
            row.canvas, (row.step, row.forward, row.post_steps) = canvas, counts
        if device.ties is not None:
            for row, near in zip(self.rows, read["near_R"].tolist(), strict=False):
                row.near_tie = bool(near)
        if device.drafts is not None:
            for row, saved in zip(self.rows, read["saved_F"].tolist(), strict=False):
                row.saved = saved
        for name, x_T in device.carried.items():
            of_rows = x_T[: sum(self.lengths)].clone().split(self.lengths)
            for row, own in zip(self.rows, of_rows, strict=True):
                if name in row.carries:
                    row.carried[name] = own
        if device.inputs is not None:
            device.inputs.sync()

    def enter_blocks(self, moved: Sequence[int]) -> None:
        """Rows have moved to other blocks since :meth:`sync`."""
        device = self.device
        for name, table in upload(self._entered(self.blocks, moved), self.at).items():
            setattr(device, name, table)
        if device.drafts is not None:
            device.drafts.drafted_R &= device.going_R
        device.pack, self.look_in, device.inputs = None, 0, self.inputs and self.inputs(self.rows)
