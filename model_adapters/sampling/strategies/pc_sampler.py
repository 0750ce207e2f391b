"""Positions by their place in the block and how much their tokens say.

Shape letters: N open positions, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_serializer, field_validator
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.records import Offer
from dare_bench.model_adapters.sampling.scores import PositionScore
from dare_bench.model_adapters.sampling.strategies.quota import Quota

SMALL = 1e-9


class Background(BaseModel):
    """How often each token id occurs among ``num_token`` tokens of a corpus; an id without a count, once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_token: int = Field(ge=1)
    counts: tuple[tuple[int, int], ...]

    _tables: dict[Any, Tensor] = PrivateAttr(default_factory=dict)

    @field_validator("counts", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        return tuple(sorted((int(token), count) for token, count in pairs))

    @field_serializer("counts")
    def _by_id(self, value: tuple[tuple[int, int], ...]) -> dict[str, int]:
        return {str(token): count for token, count in value}

    def surprise(self, vocab: int, device: torch.device) -> Tensor:
        """-ln(frequency) of each token, float32 [V]."""
        key = vocab, device
        if key not in self._tables:
            count_V = torch.ones(vocab)
            for token, count in self.counts:
                if token < vocab:
                    count_V[token] = count
            self._tables[key] = -(count_V / self.num_token + SMALL).log().to(device)
        return self._tables[key]


@dataclass(frozen=True)
class Calibrated(PositionScore):
    """exp(-lambd i) min(confidence x surprise of the token, alpha) at place i of the block."""

    background: Background
    lambd: float
    alpha: float

    def order(self, offer: Offer, draws: Draws) -> Offer:
        positions = offer.positions
        surprise_V = self.background.surprise(int(positions.mask_id) + 1, offer.token_N.device)
        place_N = (positions.column_N - positions.begin_R[positions.row_N]).float()
        score_N = (offer.confidence_N.float() * surprise_V[offer.token_N]).clamp(max=self.alpha)
        return replace(offer, score_N=torch.exp(-self.lambd * place_N) * score_N)


class PcSampler(Quota):
    """As ``quota``, where early places of the block and tokens that are rare in a corpus (``background``) come first
    (PC-Sampler; exact)."""

    name = "pc_sampler"
    source = "PC-Sampler, arXiv 2508.13021, NEUIR/PC-Sampler src/generate.py generate_with_pc_sampler"
    keeps = frozenset({"steps"})

    background: Background
    lambd: float = Field(default=1.0, ge=0)
    alpha: float = Field(default=1.0, gt=0)

    @property
    def score(self) -> PositionScore:
        return Calibrated(self.background, self.lambd, self.alpha)
