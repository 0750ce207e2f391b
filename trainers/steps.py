"""Optimizer steps as data: which rows, which noise, which micro-batch on which process.

Everything a step sees is a function of (seed, step) and of the rows: the order of rows, their noise, and what each
token weighs are settled for the whole step before it is cut into micro-batches. So neither the cut, nor the number of
processes, nor a resume changes the loss or its gradient.

Shape letters: R copies of rows, T packed tokens of them, N masked tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.utils.data import Dataset

from dare_bench.diffusion.canvas import pack
from dare_bench.diffusion.forward import Inputs, inputs
from dare_bench.diffusion.laws import Copies, Law, Noise, draw, weights
from dare_bench.seeds import key
from dare_bench.types import ModelSpec


@dataclass(frozen=True)
class TrainingRow:
    """A training row as it is learned: prompt ids, response ids with their EOS, the row's key and name."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    key: int
    where: str


Item = tuple[TrainingRow, ...]
"""What must stay together in a micro-batch: a row, or the rows of a pair."""


@dataclass(frozen=True)
class Micro:
    """The part of an optimizer step that one process computes in one forward.

    ``noise`` holds its copies, sorted by length. Copy r is of item ``item_R[r]`` (counted in this part) and of that
    item's row ``role_R[r]``. ``weight_T`` is what each token's loss is multiplied by (0 where it is not masked), as
    settled for the whole step; ``step_items`` is the number of items of the whole step. ``keys`` name the items' rows
    and noise: equal keys, equal copies (but for the law ``even``, whose levels are a whole step's).
    """

    step: int
    items: tuple[Item, ...]
    keys: tuple[int, ...]
    noise: Noise
    item_R: Tensor
    role_R: Tensor
    weight_T: Tensor
    step_items: int

    @property
    def weight_N(self) -> Tensor:
        """Of the masked tokens, in packed order, float64."""
        return self.weight_T[self.noise.masked_T]

    @property
    def copy_N(self) -> Tensor:
        """The copy that each masked token is of."""
        return self.noise.batch.row_T[self.noise.masked_T]

    def inputs(self, spec: ModelSpec, block_length: int | None = None) -> Inputs:
        """What the network is called with."""
        return inputs(self.noise.batch, self.noise.masked_T, spec, block_length)

    def sums(self, loss_N: Tensor) -> Tensor:
        """Weighted token losses summed by item and role: [items, roles], with a graph where ``loss_N`` has one.

        float64: policies are compared by the difference of sums of which each is hundreds of nats.
        """
        roles = len(self.items[0])
        place_N = (self.item_R * roles + self.role_R)[self.copy_N].to(loss_N.device)
        weighted_N = loss_N.double() * self.weight_N.to(loss_N.device)
        total = weighted_N.new_zeros(len(self.items) * roles)
        return total.index_add(0, place_N, weighted_N).view(len(self.items), roles)

    def take(self, places: Sequence[int]) -> Micro:
        """The part that some of its items are, in the order given."""
        number = {item: n for n, item in enumerate(places)}
        at = [r for r, item in enumerate(self.item_R.tolist()) if item in number]
        weight_of = self.weight_T.split(list(self.noise.batch.lengths))
        return replace(
            self,
            items=tuple(self.items[i] for i in places),
            keys=tuple(self.keys[i] for i in places),
            noise=self.noise.take(at),
            item_R=torch.tensor([number[i] for i in self.item_R[at].tolist()]),
            role_R=self.role_R[at],
            weight_T=torch.cat([weight_of[r] for r in at]),
        )


@dataclass(frozen=True)
class StepShape:
    """How a step is cut: ``items`` of one forward, ``accumulate`` forwards of a process, ``processes`` processes."""

    items: int
    accumulate: int = 1
    processes: int = 1

    @property
    def parts(self) -> int:
        return self.accumulate * self.processes

    @property
    def whole(self) -> int:
        """Items of an optimizer step."""
        return self.items * self.parts


class Order:
    """The endless order of rows: each epoch a new permutation, a function of (seed, epoch)."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._epoch: tuple[int, list[int]] = (-1, [])

    def at(self, place: int) -> tuple[int, int]:
        """(row, epoch) at a place counted from the start of training."""
        epoch, rest = divmod(place, self.count)
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(key("order", self.seed, epoch))
            self._epoch = (epoch, torch.randperm(self.count, generator=generator).tolist())
        return self._epoch[1][rest], epoch


Weigh = Callable[[Noise], Tensor]
"""What each token of a whole step's copies weighs in the loss, float64 [T]; 0 where it is not masked."""


@dataclass
class Steps(Dataset[Micro]):
    """All micro-batches of one process, in order: ``len`` is steps x accumulate.

    ``fresh``: noise is drawn anew each time a row comes round; otherwise a row keeps the noise of its first time.
    """

    items: Sequence[Item]
    law: Law
    weigh: Weigh
    steps: int
    shape: StepShape
    process: int
    seed: int
    fresh: bool = True

    @cached_property
    def _order(self) -> Order:
        return Order(len(self.items), self.seed)

    def __len__(self) -> int:
        return self.steps * self.shape.accumulate

    def __getitem__(self, place: int) -> Micro:
        step, forward = divmod(place, self.shape.accumulate)
        return self.step(step)[forward * self.shape.processes + self.process]

    def step(self, step: int) -> list[Micro]:
        """All parts of a step, in the order (forward, process)."""
        if getattr(self, "_last", (None,))[0] != step:
            self._last = (step, self._cut(step))
        return self._last[1]

    def _cut(self, step: int) -> list[Micro]:
        places = [self._order.at(step * self.shape.whole + i) for i in range(self.shape.whole)]
        items = [self.items[row] for row, _ in places]
        epochs = [epoch if self.fresh else 0 for _, epoch in places]
        noise, keys = self._noise(step, items, epochs)
        weight_T = self.weigh(noise)
        roles, draws = len(items[0]), self.law.draws
        size = roles * draws
        lengths = noise.batch.lengths
        weight_of = weight_T.split(list(lengths))
        parts = []
        for mine in balanced_parts(
            [sum(lengths[i * size : (i + 1) * size]) for i in range(len(items))], self.shape.parts
        ):
            copies = [(n, c) for n, i in enumerate(mine) for c in range(i * size, (i + 1) * size)]
            copies.sort(key=lambda copy: -lengths[copy[1]])  # equal lengths side by side attend as one dense batch
            at = [c for _, c in copies]
            parts.append(
                Micro(
                    step=step,
                    items=tuple(items[i] for i in mine),
                    keys=tuple(keys[i] for i in mine),
                    noise=noise.take(at),
                    item_R=torch.tensor([n for n, _ in copies]),
                    role_R=torch.tensor([c % size // draws for c in at]),
                    weight_T=torch.cat([weight_of[c] for c in at]),
                    step_items=len(items),
                )
            )
        return parts

    def _noise(self, step: int, items: Sequence[Item], epochs: Sequence[int]) -> tuple[Noise, list[int]]:
        """The noise of a step's copies (item by item, role by role, draw by draw), and a key of each item's noise."""
        draws = self.law.draws
        roles = len(items[0])
        rows = [(row, role, epoch) for item, epoch in zip(items, epochs, strict=True) for role, row in enumerate(item)]
        keys = [key("noise", self.seed, row.key, role, epoch) for row, role, epoch in rows]
        copies = Copies(
            pack([(row.prompt, row.response) for row, _, _ in rows for _ in range(draws)]),
            torch.tensor(keys).repeat_interleave(draws),
            torch.arange(draws).repeat(len(rows)),
            key("batch", self.seed, step),
        )
        return draw(self.law, copies), [key("item", *keys[i : i + roles]) for i in range(0, len(keys), roles)]


def redraw(micro: Micro, law: Law) -> Micro:
    """The same rows with other noise, independent of the first, for a policy that is to have its own; ELBO weights.

    Raises:
        ValueError: the law spreads levels over the whole step, of which this is a part.
    """
    if law.name == "even":
        raise ValueError("noise='even' spreads levels over a whole step; a part of it cannot be drawn again")
    keys = tuple(key("other noise", k) for k in micro.keys)
    key_IR = torch.tensor([[key(k, role) for role in range(len(micro.items[0]))] for k in keys])
    seen: dict[tuple[int, int], int] = {}
    draws = []
    for place in zip(micro.item_R.tolist(), micro.role_R.tolist(), strict=True):
        draws.append(seen.setdefault(place, 0))
        seen[place] += 1
    noise = draw(law, Copies(micro.noise.batch, key_IR[micro.item_R, micro.role_R], torch.tensor(draws), 0))
    return replace(micro, keys=keys, noise=noise, weight_T=weights(noise, "elbo"))


def balanced_parts(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """Split places into parts of equal count and about equal total size: the largest first, to and fro over the
    parts."""
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i], i))
    split: list[list[int]] = [[] for _ in range(parts)]
    for rank, place in enumerate(order):
        turn, part = divmod(rank, parts)
        split[part if turn % 2 == 0 else parts - 1 - part].append(place)
    return split
