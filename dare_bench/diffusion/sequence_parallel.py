"""Sequence parallelism: ranks that compute one pack together, each a part of its tokens (DeepSpeed-Ulysses, arXiv
2309.14509).

Each rank is given the whole pack, computes its own tokens in all layers and in the loss, and returns the results of
all. Only attention needs other tokens: one all-to-all turns a part of the tokens with all heads into all tokens with a
part of the heads, another one turns the result back. The parts are equally long; the last is filled with null tokens. A
parameter's gradient is the sum over the group, if all ranks compute the same loss from the results.

Shape letters: T packed tokens, P tokens of a part, N selected tokens, M those of a part, W ranks, H heads, K key heads,
h and k heads of a rank, C channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from itertools import pairwise
from math import lcm
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from dare_bench.errors import DareError, TrainingError

Item = TypeVar("Item")
Result = TypeVar("Result")


class _AllToAll(Function):
    """Entry i of every rank's tensor [W, ...] goes to rank i, and so do gradients on the way back. (The differentiable
    ones of PyTorch are deprecated or private, depending on its version.)"""

    @staticmethod
    def forward(ctx: Any, x_W: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group, x_W = group, x_W.contiguous()
        received_W = torch.empty_like(x_W)
        dist.all_to_all_single(received_W, x_W, group=group)
        return received_W

    @staticmethod
    def backward(ctx: Any, gradient_W: Tensor) -> tuple[Tensor | None, ...]:
        return _AllToAll.apply(gradient_W, ctx.group), None


@dataclass(frozen=True)
class Part:
    """A rank's part of a pack: token ids and positions [P], the selected tokens [M] as indices in it, their targets
    [M], and the number of selected tokens of every rank."""

    tokens_P: Tensor
    positions_P: Tensor
    at_M: Tensor
    targets_M: Tensor | None
    counts_W: list[int]


@dataclass(frozen=True, eq=False)
class SequenceGroup:
    """The ranks that compute a pack together. All of them make the same calls, in the same order."""

    group: dist.ProcessGroup

    @cached_property
    def size(self) -> int:
        """The number of ranks."""
        return self.group.size()

    @cached_property
    def rank(self) -> int:
        """The place of this rank in the group."""
        return self.group.rank()

    def part(
        self, tokens_T: Tensor, positions_T: Tensor, at_N: Tensor | None = None, targets_N: Tensor | None = None
    ) -> Part:
        """This rank's part of a pack. ``at_N``: sorted packed indices of the selected tokens; None: all."""
        length = self._length(len(tokens_T))
        first = self.rank * length
        at_N = torch.arange(len(tokens_T), device=tokens_T.device) if at_N is None else at_N
        bounds = torch.arange(self.size + 1, device=at_N.device) * length
        cuts = torch.searchsorted(at_N, bounds).tolist()
        mine = slice(cuts[self.rank], cuts[self.rank + 1])
        counts_W = [high - low for low, high in pairwise(cuts)]
        targets_M = None if targets_N is None else targets_N[mine]
        return Part(self.own(tokens_T), self.own(positions_T), at_N[mine] - first, targets_M, counts_W)

    def own(self, x_T: Tensor, null: int = 0) -> Tensor:
        """The values of this rank's tokens, [P]; ``null`` is that of null tokens."""
        length = self._length(len(x_T))
        x_P = x_T[self.rank * length : (self.rank + 1) * length]
        return pad(x_P, (0, length - len(x_P)), value=null)

    def largest(self, x: Tensor) -> Tensor:
        """The largest value of any rank, entry by entry, without a graph."""
        x = x.detach().clone()
        dist.all_reduce(x, dist.ReduceOp.MAX, group=self.group)
        return x

    def gathered(self, x_M: Tensor, counts_W: list[int]) -> Tensor:
        """The results of all ranks, [N, ...]. Only those of this rank have a graph."""
        most = max(counts_W)
        if not most:
            return x_M
        filled = pad(x_M.detach(), (0, 0) * (x_M.dim() - 1) + (0, most - len(x_M))).contiguous()
        every = [torch.empty_like(filled) for _ in counts_W]
        dist.all_gather(every, filled, group=self.group)
        parts = [part[:count] for part, count in zip(every, counts_W, strict=True)]
        parts[self.rank] = x_M
        return torch.cat(parts)

    def by_heads(self, q_PHC: Tensor, k_PKC: Tensor, v_PKC: Tensor, tokens: int) -> tuple[Tensor, ...]:
        """This rank's heads of all T = ``tokens`` tokens: queries [T, h, C], keys and values [T, k, C], in the dtype of
        the values. Under autocast that is the dtype of the matrix products, to which attention would convert."""
        kv_heads = k_PKC.shape[1]
        copies = lcm(kv_heads, self.size) // kv_heads
        if copies > 1:
            k_PKC, v_PKC = (x.repeat_interleave(copies, dim=1) for x in (k_PKC, v_PKC))
        of_ranks = [x.to(v_PKC.dtype).unflatten(1, (self.size, -1)) for x in (q_PHC, k_PKC, v_PKC)]
        received_WPhC = self._exchange(torch.cat(of_ranks, dim=2).transpose(0, 1))
        return received_WPhC.flatten(0, 1)[:tokens].split([x.shape[2] for x in of_ranks], dim=1)

    def by_tokens(self, out_ThC: Tensor) -> Tensor:
        """All heads of this rank's tokens, [P, H, C]: the way back."""
        tokens = len(out_ThC)
        length = self._length(tokens)
        filled = pad(out_ThC, (0, 0, 0, 0, 0, self.size * length - tokens))
        return self._exchange(filled.unflatten(0, (self.size, length))).transpose(0, 1).flatten(1, 2)

    def divided(self, items: Sequence[Item], compute: Callable[[Sequence[Item]], Result]) -> list[Result]:
        """Every rank's result of its share of the items (rank r has r, r + W, ...), of any kind that can be pickled.
        Raises DareError: the rank's own; TrainingError where another rank raised one, instead of waiting for that rank.
        """
        result, error = None, None
        try:
            result = compute(items[self.rank :: self.size])
        except DareError as own:
            error = own
        every: list[Any] = [None] * self.size
        dist.all_gather_object(every, (result, None if error is None else str(error)), group=self.group)
        if error is not None:
            raise error
        for rank, (_, problem) in enumerate(every):
            if problem is not None:
                raise TrainingError(f"process {rank} of the sequence-parallel group failed: {problem}")
        return [result for result, _ in every]

    def _length(self, tokens: int) -> int:
        return -(-tokens // self.size)

    def _exchange(self, x_W: Tensor) -> Tensor:
        received_W: Tensor = _AllToAll.apply(x_W, self.group)
        return received_W


def sequence_group(size: int, timeout: timedelta | None = None) -> SequenceGroup | None:
    """This rank's group of ``size`` consecutive ranks, which divide all ranks; None for groups of one. Called by all
    ranks together."""
    if size == 1:
        return None
    mine, _ = dist.new_subgroups(size, timeout=timeout)
    return SequenceGroup(mine)
