"""Optimizer steps: the rows, noise and weights of each step as copies.

A step is a function of (seed, step) and of the rows, computed for the whole step before it is divided: neither the
division, nor the number of processes, nor a resume changes the loss or its gradient.

Shape letters: R copies, T packed tokens of them, N scored tokens, I items.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dare_bench.diffusion.masked_copies import MaskedCopies, masked_copies, pack
from dare_bench.diffusion.schedules import CleanCopies, Noise, NoiseSchedule, draw, weights
from dare_bench.errors import CheckpointError
from dare_bench.reading import read_json
from dare_bench.seeds import key
from dare_bench.training.rows import TokenRow

Item = tuple[TokenRow, ...]
"""Rows that one loss compares: one row, or the two of a pair (their index is the row's role)."""


@dataclass(frozen=True)
class Step:
    """The part of an optimizer step that one process computes, in any number of forwards; a source may give its
    objective a subclass with more in it.

    Copy r belongs to item ``item_R[r]`` (counted in this part) and to that item's row ``role_R[r]``. ``weight_N`` is a
    factor of each scored token, computed for the whole step of ``step_items`` items. Equal ``keys``, equal copies
    (except for the schedule ``even``, whose levels belong to a whole step).
    """

    number: int
    items: tuple[Item, ...]
    keys: tuple[int, ...]
    copies: MaskedCopies
    item_R: Tensor
    role_R: Tensor
    weight_N: Tensor
    step_items: int

    def sums(self, loss_N: Tensor) -> Tensor:
        """Weighted token losses summed by item and role: float64 [items, roles], with a graph where ``loss_N`` has one.
        Policies are compared by the difference of sums that are hundreds of nats each."""
        roles = len(self.items[0])
        place_N = (self.item_R * roles + self.role_R)[self.copies.copy_N].to(loss_N.device)
        weighted_N = loss_N.double() * self.weight_N.to(loss_N.device)
        total = weighted_N.new_zeros(len(self.items) * roles)
        return total.index_add(0, place_N, weighted_N).view(len(self.items), roles)

    def take(self, places: Sequence[int]) -> Step:
        """The part with some of its items, in the order given."""
        copies_of: list[list[int]] = [[] for _ in self.items]
        for copy, item in enumerate(self.item_R.tolist()):
            copies_of[item].append(copy)
        kept = [copy for item in places for copy in copies_of[item]]
        copies, index_N = self.copies.take(kept)
        return replace(
            self,
            items=tuple(self.items[i] for i in places),
            keys=tuple(self.keys[i] for i in places),
            copies=copies,
            item_R=torch.arange(len(places)).repeat_interleave(torch.tensor([len(copies_of[i]) for i in places])),
            role_R=self.role_R[kept],
            weight_N=self.weight_N[index_N],
        )


@dataclass(frozen=True)
class StepShape:
    """How a step is divided: ``items`` of a forward, ``accumulate`` forwards of a process, ``processes`` processes.
    With sequence parallelism ``sequence`` processes compute a forward together, and count as one of ``processes``."""

    items: int
    accumulate: int = 1
    processes: int = 1
    sequence: int = 1

    @property
    def items_per_step(self) -> int:
        """Items of an optimizer step."""
        return self.items * self.accumulate * self.processes

    def describe(self) -> str:
        """The product in words."""
        each = "device" if self.sequence == 1 else "group"
        return f"{self.items} per {each} x {self.accumulate} accumulated x {self.division} = {self.items_per_step}"

    @property
    def division(self) -> str:
        """The processes in words."""
        if self.sequence == 1:
            return f"{self.processes} process{'es' if self.processes > 1 else ''}"
        return f"{self.processes} group{'s' if self.processes > 1 else ''} of {self.sequence} processes"


class StepSource(ABC):
    """Where a process gets its steps."""

    canvas_lengths: tuple[int, int] | None = None
    """Shortest and longest response of the steps so far, in tokens; None: decoding does not depend on them."""

    @property
    @abstractmethod
    def rows(self) -> int:
        """Items of an epoch."""

    @abstractmethod
    def describe(self) -> str:
        """How the size of a step follows from the settings, for the user."""

    @abstractmethod
    def step(self, number: int) -> Step:
        """This process's part of a step. Steps are requested in order, from any first one on."""

    def attach(self, policy: Any) -> None:  # noqa: B027
        """The model in training, for sources that sample with it (see ``trainers.policy``)."""

    def save(self, folder: Path) -> None:  # noqa: B027
        """Write to a checkpoint what the next step depends on beside its number."""

    def load(self, folder: Path) -> None:  # noqa: B027
        """Read it again."""


@lru_cache(maxsize=2)
def permutation(count: int, seed: int, epoch: int) -> list[int]:
    """The order of rows in an epoch."""
    generator = torch.Generator().manual_seed(key("order", seed, epoch))
    order: list[int] = torch.randperm(count, generator=generator).tolist()
    return order


def places(step: int, per_step: int, count: int, seed: int) -> list[tuple[int, int]]:
    """(epoch, index of the row) of each item of a step, rows in the order of their epoch."""
    positions = (divmod(place, count) for place in range(step * per_step, (step + 1) * per_step))
    return [(epoch, permutation(count, seed, epoch)[i]) for epoch, i in positions]


Weigh = Callable[[Noise], Tensor]
"""The loss weight of each token of a whole step's copies, float64 [T]; 0 where it is not masked."""


@dataclass
class NoisedRows(StepSource):
    """Steps of noised training rows (see :class:`StepSource`). ``fresh``: noise and canvases are drawn anew in each
    epoch; otherwise a row keeps those of the first epoch. ``fill`` adds the EOS tokens of a step's items, by a key of
    each; None: the items have them."""

    items: Sequence[Item]
    schedule: NoiseSchedule
    weigh: Weigh
    mask_id: int
    shape: StepShape
    seed: int
    process: int = 0
    fresh: bool = True
    fill: Callable[[Sequence[Item], Sequence[int]], tuple[Item, ...]] | None = None
    canvas_lengths: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return len(self.items)

    def step(self, number: int) -> Step:
        """This process's part of a step."""
        whole = self.whole(number)
        if self.shape.processes == 1:
            return whole
        lengths_I = torch.tensor(whole.copies.batch.lengths).view(len(whole.items), -1).sum(1)
        return whole.take(balanced_parts(lengths_I.tolist(), self.shape.processes)[self.process])

    def describe(self) -> str:
        return f"each optimizer step: {self.shape.describe()} rows"

    def load(self, folder: Path) -> None:
        """The lengths of the steps so far, from the checkpoint's lineage. A step is a function of its number."""
        self._saw(read_json(folder / "lineage.json", CheckpointError).get("canvas_lengths") or ())

    def _saw(self, lengths: Sequence[int]) -> None:
        if lengths and self.schedule.block_length is None:
            seen = (*lengths, *(self.canvas_lengths or ()))
            self.canvas_lengths = min(seen), max(seen)

    def whole(self, number: int) -> Step:
        """A step of all processes: its copies item by item, role by role, draw by draw."""
        drawn = places(number, self.shape.items_per_step, len(self.items), self.seed)
        items, epochs = tuple(self.items[i] for _, i in drawn), [epoch if self.fresh else 0 for epoch, _ in drawn]
        if self.fill is not None:
            canvas_keys = [
                key("canvas", self.seed, item[0].key, epoch) for item, epoch in zip(items, epochs, strict=True)
            ]
            items = self.fill(items, canvas_keys)
        self._saw([len(row.answer) for item in items for row in item])
        keys = [
            [key("noise", self.seed, row.key, role, epoch) for role, row in enumerate(item)]
            for item, epoch in zip(items, epochs, strict=True)
        ]
        roles, draws = len(items[0]), self.schedule.draws
        clean = CleanCopies(
            pack([(row.prompt, row.answer) for item in items for row in item for _ in range(draws)]),
            torch.tensor(keys).flatten().repeat_interleave(draws),
            torch.arange(draws).repeat(len(items) * roles),
            key("batch", self.seed, number),
        )
        noise = draw(self.schedule, clean)
        return Step(
            number=number,
            items=items,
            keys=tuple(key("item", *item_keys) for item_keys in keys),
            copies=masked_copies(noise.batch, noise.masked_T, self.mask_id),
            item_R=torch.arange(len(items)).repeat_interleave(roles * draws),
            role_R=torch.arange(roles).repeat_interleave(draws).repeat(len(items)),
            weight_N=self.weigh(noise)[noise.masked_T],
            step_items=len(items),
        )


def redraw(step: Step, schedule: NoiseSchedule, mask_id: int) -> Step:
    """The same rows with independent noise, for a policy that does not share the other's; ELBO weights. Raises
    ValueError: the schedule spreads levels over the whole step, of which this is a part."""
    if schedule.name == "even":
        raise ValueError("noise='even' spreads levels over a whole step; a part of it cannot be redrawn")
    keys = tuple(key("other noise", k) for k in step.keys)
    key_IR = torch.tensor([[key(k, role) for role in range(len(step.items[0]))] for k in keys])
    seen: dict[tuple[int, int], int] = {}
    draws = []
    for place in zip(step.item_R.tolist(), step.role_R.tolist(), strict=True):
        draws.append(seen.setdefault(place, 0))
        seen[place] += 1
    noise = draw(schedule, CleanCopies(step.copies.batch, key_IR[step.item_R, step.role_R], torch.tensor(draws), 0))
    return replace(
        step,
        keys=keys,
        copies=masked_copies(noise.batch, noise.masked_T, mask_id),
        weight_N=weights(noise, "elbo")[noise.masked_T],
    )


def balanced_parts(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Divide the indices of ``sizes`` into parts of equal count (give or take one) and similar total size: the largest
    first, in alternating direction over the parts."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    split: list[list[int]] = [[] for _ in range(parts)]
    for rank, place in enumerate(order):
        turn, part = divmod(rank, parts)
        split[part if turn % 2 == 0 else parts - 1 - part].append(place)
    return split
