"""Positions by their place in the block and how much their tokens say.

Shape letters: N open positions, C counted tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator
from torch import Tensor

from dare_bench.model_adapters.sampling.draws import Draws
from dare_bench.model_adapters.sampling.records import Offer
from dare_bench.model_adapters.sampling.scores import PositionScore
from dare_bench.model_adapters.sampling.strategies.published import PaperSettings
from dare_bench.model_adapters.sampling.strategies.quota import Quota

SMALL = 1e-9


class Background(BaseModel):
    """How often each token id occurs among ``num_token`` tokens of a corpus; an id without a count, once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_token: int = Field(ge=1)
    counts: tuple[tuple[int, int], ...]

    @field_validator("counts", mode="before")
    @classmethod
    def _pairs(cls, value: Any) -> Any:
        pairs = value.items() if isinstance(value, dict) else value
        return tuple(sorted((int(token), count) for token, count in pairs))

    @field_serializer("counts")
    def _by_id(self, value: tuple[tuple[int, int], ...]) -> dict[str, int]:
        return {str(token): count for token, count in value}

    def surprise(self, token_N: Tensor) -> Tensor:
        """-ln(frequency) of tokens, float32 [N]."""
        id_C, count_C = _table(self, token_N.device)
        place_N = torch.searchsorted(id_C, token_N)
        count_N = torch.where(id_C[place_N] == token_N, count_C[place_N], 1.0)
        return -(count_N / self.num_token + SMALL).log()

    def __hash__(self) -> int:
        return hash((self.num_token, len(self.counts)))  # that of all counts takes milliseconds


@lru_cache(maxsize=8)
def _table(background: Background, device: torch.device) -> tuple[Tensor, Tensor]:
    """The ids in their order and their counts, [C] each; one more behind them, for ids above all of these."""
    ids, counts = zip(*background.counts, (torch.iinfo(torch.long).max, 1), strict=True)
    return torch.tensor(ids, device=device), torch.tensor(counts, dtype=torch.float32, device=device)


@dataclass(frozen=True)
class Calibrated(PositionScore):
    """exp(-lambd i) min(confidence x surprise of the token, alpha) at place i of the block."""

    background: Background
    lambd: float
    alpha: float

    def order(self, offer: Offer, draws: Draws) -> Offer:
        positions = offer.positions
        place_N = (positions.column_N - positions.begin_R[positions.row_N]).float()
        score_N = (offer.confidence_N.float() * self.background.surprise(offer.token_N)).clamp(max=self.alpha)
        return replace(offer, score_N=torch.exp(-self.lambd * place_N) * score_N)


class PcSampler(Quota):
    """As ``quota``, where early places of the block and tokens that are rare in a corpus (``background``) come first
    (PC-Sampler; approximate)."""

    name = "pc_sampler"
    source = "PC-Sampler, arXiv 2508.13021, NEUIR/PC-Sampler src/generate.py generate_with_pc_sampler"
    rule = "a quota; early places and rare tokens first"
    exact = ""
    keeps = frozenset({"steps"})
    published = tuple(
        PaperSettings(
            ("llada",),
            benchmarks,
            {"alpha": 10.0, "lambd": 0.25},
            {"gen_length": length, "block_length": length, "steps": length},
        )
        for length, *benchmarks in ((256, "GSM8K", "HumanEval", "GPQA"), (1024, "MATH"), (128, "MBPP"))
    )
    static: ClassVar[bool] = False
    """The table of counts is made on the device at first use."""

    background: Background
    lambd: float = Field(default=1.0, ge=0)
    alpha: float = Field(default=1.0, gt=0)

    @property
    def score(self) -> PositionScore:
        return Calibrated(self.background, self.lambd, self.alpha)
