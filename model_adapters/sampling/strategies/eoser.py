"""The confidence of EOS is lowered in early forwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr, field_serializer, field_validator, model_validator
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.records import Offer, Positions
from dare_bench.model_adapters.sampling.scores import PositionScore, TopTwoMargin
from dare_bench.model_adapters.sampling.strategies import Strategy, strategy_of
from dare_bench.model_adapters.sampling.strategies.wrapped import WrappedStrategy


def is_any(token_N: Tensor, ids: Sequence[int]) -> Tensor:
    """Is each token one of ``ids``? bool [N]."""
    return torch.isin(token_N, torch.tensor(ids, dtype=torch.long, device=token_N.device))


@dataclass(frozen=True)
class DecayedEos(PositionScore):
    """Another score, multiplied by gamma where the proposed token is an EOS. Gamma rises linearly from ``gamma_min`` in
    the first of ``steps`` forwards of a block to 1 in the last one."""

    score: PositionScore
    gamma_min: float
    steps: int
    eos_ids: tuple[int, ...]

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return self.score.of(probability_NV, confidence_N)

    def order(self, offer: Offer, positions: Positions, draws: Draws) -> Offer:
        offer = self.score.order(offer, positions, draws)
        eos_N = is_any(offer.token_N, self.eos_ids)
        gamma_N = self.gamma(positions.step_R)[positions.row_N].to(offer.score_N.dtype)
        return replace(offer, score_N=offer.score_N * torch.where(eos_N, gamma_N, 1.0))

    def gamma(self, step_R: Tensor) -> Tensor:
        """The factor at these steps of a block, float64 [R]."""
        done_R = step_R.double() / (self.steps - 1) if self.steps > 1 else torch.ones_like(step_R, dtype=torch.float64)
        return self.gamma_min + (1 - self.gamma_min) * done_R.clamp(max=1)


class Eoser(WrappedStrategy):
    """The ``inner`` strategy, with the confidence of EOS multiplied by a factor that rises from ``gamma_min`` to 1 over
    the steps of a block, so that answers do not end early (EOSER, EOS early rejection; approximate). ``steps`` are the
    inner strategy's."""

    name: ClassVar[str] = "eoser"
    source: ClassVar[str] = "EOSER, arXiv 2509.23924"

    inner: Strategy = Field(default="quota", validate_default=True)
    """By name or as ``{"name": NAME, field: value}``; it ranks by confidence or margin."""
    gamma_min: float = Field(default=0.4, ge=0, le=1)

    _eos_ids: tuple[int, ...] = PrivateAttr(default=())
    _planned: int = PrivateAttr(default=1)

    @field_validator("inner", mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Strategy:
        inner = strategy_of(value)
        if inner.edits or type(inner.score) not in (PositionScore, TopTwoMargin):
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

    def for_model(self, eos_ids: Sequence[int], length: int) -> Eoser:
        inner = self.inner.for_model(eos_ids, length)
        copy = self.model_copy(update={"inner": inner})
        copy._eos_ids, copy._planned = tuple(eos_ids), inner.planned(length)
        return copy

    @property
    def score(self) -> PositionScore:
        return DecayedEos(self.inner.score, self.gamma_min, self._planned, self._eos_ids)
