"""Strategies around another one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr, field_serializer, field_validator, model_validator
from torch import Tensor

from dare_bench.model_adapters.sampling.records import Decision, Offer, Positions
from dare_bench.model_adapters.sampling.scores import PositionScore, TopTwoMargin
from dare_bench.model_adapters.sampling.strategies import Strategy, strategy_of


class WrappedStrategy(Strategy):
    """A strategy that modifies another one, for which written tokens are final: one that ``edits`` (``remasks``,
    ``remembers``), or carries values, is refused with ValueError. Subclasses override :meth:`select`."""

    inner: Strategy

    @model_validator(mode="after")
    def _tokens_are_final(self) -> Self:
        if self.inner.edits or self.inner.has_state:
            does = "writes over tokens" if self.inner.edits else "remembers what it did"
            raise ValueError(f"strategy {self.inner.name!r} {does}; {type(self).__name__} cannot modify it")
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

    def select(self, offer: Offer) -> Decision:
        positions, chosen = offer.positions, self.inner.select(offer)
        is_first_N = positions.live(positions.is_first_N)
        has_first_R = positions.count(is_first_N) > 0
        opening_R = (positions.step_R == 0) & has_first_R  # a given canvas may hold the first token
        return chosen.only(torch.where(opening_R[positions.row_N], is_first_N, chosen.written_N), positions)


class Eoser(WrappedStrategy):
    """The ``inner`` strategy, with the confidence of EOS multiplied by a factor that rises from ``gamma_min`` to 1 over
    the steps of a block, so that answers do not end early (EOSER, EOS early rejection; approximate). ``steps`` are the
    inner strategy's."""

    name: ClassVar[str] = "eoser"
    source: ClassVar[str] = "EOSER, arXiv 2509.23924"
    rule: ClassVar[str] = "another strategy, with EOS held back early"

    inner: Strategy = Field(default="quota", validate_default=True)
    """By name or as ``{"name": NAME, field: value}``; it ranks by confidence or margin."""
    gamma_min: float = Field(default=0.4, ge=0, le=1)

    _eos_ids: tuple[int, ...] = PrivateAttr(default=())
    _planned: int = PrivateAttr(default=1)

    @field_validator("inner", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Strategy:
        inner = strategy_of(value)
        if inner.edits or isinstance(inner, Eoser) or type(inner.score) not in (PositionScore, TopTwoMargin):
            raise ValueError(
                f"strategy {inner.name!r} does not rank masked positions by a probability; use one that ranks by "
                "confidence or margin (quota, block_quota, threshold, dynamic, ascending, ...)"
            )
        return inner

    @model_validator(mode="after")
    def _hand_on_steps(self) -> Self:
        if self.steps not in (None, self.inner.steps):
            if self.inner.steps is not None:
                raise ValueError(f"steps={self.steps} and the inner strategy's steps={self.inner.steps}; give one")
            object.__setattr__(self, "inner", self.inner.model_copy(update={"steps": self.steps}))
        return self

    @field_serializer("inner")
    def _recorded(self, inner: Strategy) -> dict[str, Any]:
        return inner.recorded()

    def for_model(self, eos_ids: Sequence[int], length: int, answer: int) -> Eoser:
        inner = self.inner.for_model(eos_ids, length, answer)
        copy = self.model_copy(update={"inner": inner})
        copy._eos_ids, copy._planned = tuple(eos_ids), inner.planned(length)
        return copy

    def gamma(self, step_R: Tensor) -> Tensor:
        """The factor at these steps of a block, float64 [R]."""
        last = self._planned - 1
        done_R = step_R.double() / last if last > 0 else torch.ones_like(step_R, dtype=torch.float64)
        return self.gamma_min + (1 - self.gamma_min) * done_R.clamp(max=1)

    def select(self, offer: Offer) -> Decision:
        eos_N = torch.isin(offer.token_N, torch.tensor(self._eos_ids, dtype=torch.long, device=offer.token_N.device))
        gamma_N = self.gamma(offer.positions.step_R)[offer.positions.row_N].to(offer.score_N.dtype)
        score_N = offer.score_N * torch.where(eos_N, gamma_N, 1.0)
        return self.inner.select(replace(offer, score_N=score_N))
