"""Strategies around another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy


class WrappedStrategy(Strategy):
    """A strategy that modifies another one, for which written tokens are final: one that ``edits`` (``remasks``,
    ``remembers``) is refused with ValueError."""

    inner: Strategy

    @model_validator(mode="after")
    def _tokens_are_final(self) -> Self:
        if self.inner.edits or self.inner.remembers:
            raise ValueError(f"strategy {self.inner.name!r} writes over tokens; {type(self).__name__} cannot modify it")
        return self

    @property
    def score(self) -> PositionScore:
        return self.inner.score

    @property
    def decision(self) -> Strategy:
        return self.model_copy(update={"steps": None, "inner": self.inner.decision})

    def planned(self, length: int) -> int:
        return self.inner.planned(length)

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        return self.inner.schedule(masks, before, length, first)

    def most_forwards(self, length: int) -> int:
        return self.inner.most_forwards(length)

    def limit(self, length: int, schedule: Sequence[int]) -> int:
        return self.inner.limit(length, schedule)

    def least_forwards(self, masks: int, due: Sequence[int]) -> int:
        return self.inner.least_forwards(masks, due)

    def finished(self, positions: Positions, decision: Decision) -> Tensor:
        return self.inner.finished(positions, decision)

    def select(self, offer: Offer, positions: Positions) -> Decision:
        return self.inner.select(offer, positions)


class FirstToken(WrappedStrategy):
    """The first forward of a block, which fills the cache, writes the block's first token alone; the inner strategy
    goes on from there: later forwards see only the block, and its first token is predicted before it (Fast-dLLM's Dream
    with a cache, approximate; Fast-dLLM v2, exact)."""

    source: ClassVar[str] = "Fast-dLLM, arXiv 2505.22618, Dream generation_utils_block.py"

    @property
    def static(self) -> bool:
        return self.inner.static

    def schedule(self, masks: int, before: int, length: int, first: int = 0) -> list[int]:
        if first:
            return self.inner.schedule(masks, 0, length, first)
        rest = self.inner.schedule(masks - 1, 0, length, 1)
        if rest:
            rest[-1] += max(0, masks - 1 - sum(rest))
        return [1, *rest]

    def most_forwards(self, length: int) -> int:
        return max(self.inner.most_forwards(length), len(self.schedule(length, 0, length)))

    def select(self, offer: Offer, positions: Positions) -> Decision:
        chosen = self.inner.select(offer, positions)
        is_first_N = positions.live(positions.is_first_N)
        has_first_R = positions.count(is_first_N) > 0
        opening_R = (positions.step_R == 0) & has_first_R  # a given canvas may hold the first token
        return chosen.only(torch.where(opening_R[positions.row_N], is_first_N, chosen.written_N), positions)
