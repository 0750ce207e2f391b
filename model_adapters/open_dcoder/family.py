"""Open-dCoder: decoding fields by the names of its diffusion_generate, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dare_bench.model_adapters.chatml import CHAT_TEMPLATE
from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.fields import Count, NaturalNumber, TopP
from dare_bench.model_adapters.open_dcoder.network import OpenDCoderModel
from dare_bench.model_adapters.replay.published import PublishedTies
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.draws import NoiseRule, ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.scores import SCORES, DrawnOrder, PositionScore
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.remasking import P2
from dare_bench.model_adapters.sampling.strategies.timed import Bernoulli, TimeQuota
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import ModelSpec


class ClampedEntropy(PositionScore):
    """The negated entropy as Open-dLLM computes it; near ties depend on its small constant."""

    def of(self, probability_NV: Tensor, confidence_N: Tensor) -> Tensor:
        return (probability_NV * torch.log(probability_NV.clamp(min=1e-10))).sum(-1)


RANKED_BY: Mapping[str, PositionScore] = {
    "maskgit_plus": SCORES["confidence"],
    "topk_margin": SCORES["margin"],
    "entropy": ClampedEntropy(),
}


class RankedQuota(TimeQuota):
    """Dream's quota by time, ranked by the scores of ``RANKED_BY``."""

    alg: Literal["maskgit_plus", "topk_margin", "entropy"]

    @property
    def score(self) -> PositionScore:
        score = RANKED_BY[self.alg]
        return DrawnOrder(score, self.order_temperature) if self.order_temperature > 0 else score


class OpenDCoderDecoding(SamplerFields):
    """Open-dCoder's sampler. ``steps`` equals ``max_new_tokens`` (``gen_length``) unless given; ``alg`` is that of its
    evaluation."""

    own_strategy = frozenset({"steps", "alg", "alg_temp", "eps"})

    steps: Count = Field(default_factory=lambda fields: fields["gen_length"])
    alg: Literal["p2", "entropy", "maskgit_plus", "topk_margin", "origin"] = "p2"
    alg_temp: float | None = Field(default=None, ge=0)
    eps: float = Field(default=1e-3, gt=0, lt=1)
    top_p: TopP | None = None
    top_k: NaturalNumber | None = None

    @model_validator(mode="after")
    def _consistent(self) -> OpenDCoderDecoding:
        if self.alg_temp and self.alg in ("p2", "origin"):
            raise ValueError(
                f"alg_temp={self.alg_temp} does nothing with alg={self.alg!r}: leave it out, or use alg='entropy', "
                "'maskgit_plus' or 'topk_margin'"
            )
        return self

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.alg != "origin" and not self.alg_temp

    @property
    def rewriting(self) -> tuple[str, str] | None:
        return ("alg='p2'", "give --rollout alg=entropy") if self.alg == "p2" else None


class OpenDCoder(Family):
    """fredzzp/open-dcoder-0.5B."""

    name = "open_dcoder"
    network = OpenDCoderModel
    decoding = OpenDCoderDecoding
    chat_template = CHAT_TEMPLATE
    predicts = "next"
    mask_texts = ("<M>", "[MASK]", "<|mask|>")

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        """The mask is the tokenizer's mask token, as published; config.json does not name it."""
        ids, own = super().special_ids(config, tokenizer, generation), getattr(tokenizer, "mask_token_id", None)
        named = getattr(config, "mask_token_id", None) is not None
        return ids if own is None or named else replace(ids, mask=own, mask_from="the tokenizer's mask token")

    def sampler(self, decoding: OpenDCoderDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        noise: NoiseRule = "canvas" if d.alg == "p2" else "origin" if d.alg == "origin" else "gumbel_order"
        return self.compose(
            d,
            spec,
            self._strategy(d),
            d.gen_length,
            ReferencePolicy(noise=noise, count="forwards" if d.alg in ("p2", "origin") else "schedule"),
            tokens=TokenPolicy(
                temperature=d.temperature,
                top_k=d.top_k or 0,
                top_p=1.0 if d.top_p is None else d.top_p,
                top_p_first=True,
                confidence_of="kept",
            ),
            attention=AttentionPolicy(predicts_next=True),
        )

    @staticmethod
    def _strategy(d: OpenDCoderDecoding) -> Strategy:
        if d.alg == "p2":
            return P2(steps=d.steps)
        if d.alg == "origin":
            return Bernoulli(steps=d.steps, eps=d.eps)
        quota = RankedQuota(steps=d.steps, alg=d.alg, order_temperature=d.alg_temp or 0.0, eps=d.eps)
        if not d.alg_temp and (d.top_k or (d.top_p or 1.0) < 1):
            return PublishedTies(inner=quota, tie_score=0.0 if d.alg == "entropy" else 1.0)
        return quota


FAMILY = OpenDCoder()
