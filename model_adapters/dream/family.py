"""Dream: decoding fields by the names of Dream's diffusion_generate, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.chatml import CHAT_TEMPLATE
from dare_bench.model_adapters.dream.carry import Carry
from dare_bench.model_adapters.dream.estimators import DreamEstimator
from dare_bench.model_adapters.dream.network import DreamModel
from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.family_rules import special_from_tokenizer
from dare_bench.model_adapters.fields import Count, NaturalNumber, Probability, TopP, divides, divisors, steps_fit
from dare_bench.model_adapters.replay.published import PublishedTies
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import CountRule, ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.scores import RankBy
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import Threshold
from dare_bench.model_adapters.sampling.strategies.timed import Bernoulli, TimeQuota
from dare_bench.model_adapters.sampling.strategies.wrapped import FirstToken
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import ModelSpec

EXPAND = "<|expand|>"
"""DreamOn's token that becomes two masks."""
BLOCK_LENGTH = 32
THRESHOLD = 0.9
RANKED_BY: dict[str, RankBy] = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


class DreamDecoding(SamplerFields):
    """Dream's sampler. ``steps`` equals ``max_new_tokens`` (``gen_length``) unless given.

    ``alg="confidence_threshold"`` (with ``threshold``) and ``cache`` (with ``block_length``) are Fast-dLLM's (arXiv
    2505.22618): approximate, tier A.
    """

    own_strategy = frozenset({"steps", "alg", "alg_temp", "eps", "threshold"})

    steps: Count = Field(default_factory=lambda fields: fields["gen_length"])
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "confidence_threshold"] = "entropy"
    alg_temp: float | None = Field(default=None, ge=0)
    eps: float = Field(default=1e-3, gt=0, lt=1)
    top_p: TopP | None = None
    top_k: NaturalNumber | None = None
    threshold: Probability | None = Field(
        default_factory=lambda fields: THRESHOLD if fields["alg"] == "confidence_threshold" else None
    )
    cache: Literal["none", "prefix", "dual"] = "none"
    block_length: Count | None = Field(
        default_factory=lambda fields: None if fields["cache"] == "none" else min(BLOCK_LENGTH, fields["gen_length"])
    )

    @model_validator(mode="after")
    def _consistent(self) -> DreamDecoding:
        if self.threshold is not None and self.alg != "confidence_threshold":
            raise ValueError(f"threshold={self.threshold} belongs to alg='confidence_threshold', not to {self.alg!r}")
        if self.alg_temp and self.alg in ("origin", "confidence_threshold"):
            raise ValueError(
                f"alg_temp={self.alg_temp} does nothing with alg={self.alg!r}: leave it out, or use alg='entropy', "
                "'maskgit_plus' or 'topk_margin'"
            )
        if self.cache == "none":
            if self.block_length is not None:
                raise ValueError(
                    f"block_length={self.block_length} belongs to cache='prefix' or 'dual'; Dream's own sampler has no "
                    "blocks: leave it out"
                )
            if self.alg == "confidence_threshold" and self.gen_length % self.steps:
                raise ValueError(
                    f"steps={self.steps} must divide gen_length={self.gen_length} with alg='confidence_threshold'; "
                    f"allowed: {divisors(self.gen_length)}"
                )
            return self
        assert self.block_length is not None
        divides(self.gen_length, self.block_length)
        steps_fit(self.steps, self.gen_length // self.block_length)
        if self.alg not in ("entropy", "confidence_threshold") or self.alg_temp:
            raise ValueError(
                f"cache={self.cache!r} decodes by alg='entropy' or 'confidence_threshold', without alg_temp; "
                f"given alg={self.alg!r}, alg_temp={self.alg_temp}"
            )
        return self

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.alg != "origin" and not self.alg_temp


class Dream(Family):
    """Dream-org/Dream-v0-Base-7B and -Instruct-7B."""

    name = "dream"
    network = DreamModel
    decoding = DreamDecoding
    chat_template = CHAT_TEMPLATE
    predicts = "next"
    mask_texts = ("<|mask|>",)

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        if special_from_tokenizer(tokenizer, EXPAND) is not None:
            raise CheckpointError(
                f"a DreamOn checkpoint (its tokenizer has {EXPAND}): its answers grow where it writes that token and "
                "shrink where it writes an EOS, which is not implemented here; use its authors' code "
                "(https://github.com/DreamLM/DreamOn)"
            )
        return super().special_ids(config, tokenizer, generation)

    def likelihood_estimator(self, spec: ModelSpec) -> DreamEstimator:
        return DreamEstimator()

    def sampler(self, decoding: DreamDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        cached, by_threshold = d.cache != "none", d.alg == "confidence_threshold"
        block_length = d.block_length or d.gen_length
        count: CountRule = "forwards" if cached else "carry" if by_threshold else "schedule"
        return self.compose(
            d,
            spec,
            self._strategy(d, block_length, cached),
            block_length,
            ReferencePolicy(noise="origin" if d.alg == "origin" else "masked", count=count),
            around=FirstToken if cached else None,
            approximate=cached or by_threshold,
            tokens=TokenPolicy(
                temperature=d.temperature,
                top_k=d.top_k or 0,
                top_p=1.0 if d.top_p is None else d.top_p,
                top_p_first=True,
                confidence_of="kept",
            ),
            attention=AttentionPolicy(predicts_next=True, cache=CACHES[d.cache]),
        )

    @staticmethod
    def _strategy(d: DreamDecoding, block_length: int, cached: bool) -> Strategy:
        steps = d.steps // (d.gen_length // block_length)
        if d.alg == "origin":
            return Bernoulli(steps=steps, eps=d.eps)
        if d.threshold is not None:
            return (Threshold if cached else Carry)(steps=steps, threshold=d.threshold)
        quota = TimeQuota(steps=steps, rank_by=RANKED_BY[d.alg], order_temperature=d.alg_temp or 0.0, eps=d.eps)
        if not d.alg_temp and (d.top_k or (d.top_p or 1.0) < 1):
            return PublishedTies(inner=quota, tie_score=0.0 if d.alg == "entropy" else 1.0)
        return quota


FAMILY = Dream()
