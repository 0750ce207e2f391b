"""Dream: decoding fields by the names of Dream's diffusion_generate, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from dare_bench.model_adapters.dream.likelihood import DreamLaw
from dare_bench.model_adapters.dream.network import DreamModel
from dare_bench.model_adapters.dream.template import CHAT_TEMPLATE
from dare_bench.model_adapters.family import Family
from dare_bench.model_adapters.fields import counts, divides, divisors, keeps_text, sampling, steps_fit
from dare_bench.model_adapters.sampling.rule import Rule, Which
from dare_bench.types import Decoding, ModelSpec

BLOCK_LENGTH = 32
THRESHOLD = 0.9
RANKED_BY: dict[str, Which] = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


class DreamDecoding(Decoding):
    """Dream's sampler. ``steps`` equals ``max_new_tokens`` (``gen_length``) unless given.

    ``alg="confidence_threshold"`` (with ``threshold``) and ``cache`` (with ``block_length``) are Fast-dLLM's (arXiv
    2505.22618): approximate, tier A.
    """

    steps: int | None = None
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy", "confidence_threshold"] = "entropy"
    alg_temp: float | None = Field(default=None, ge=0)
    eps: float = Field(default=1e-3, gt=0, lt=1)
    top_p: float | None = None
    top_k: int | None = None
    threshold: float | None = Field(default=None, ge=0, le=1)
    cache: Literal["none", "prefix", "dual"] = "none"
    block_length: int | None = None

    @field_validator("steps", "block_length", "top_k", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        return cls._whole(value)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        values = dict(values)
        gen_length = values.get("gen_length", Decoding.model_fields["gen_length"].default)
        if values.get("steps") is None:
            values["steps"] = gen_length
        if values.get("cache", "none") != "none" and values.get("block_length") is None:
            values["block_length"] = min(BLOCK_LENGTH, gen_length)
        if values.get("alg") == "confidence_threshold" and values.get("threshold") is None:
            values["threshold"] = THRESHOLD
        return values

    @model_validator(mode="after")
    def _consistent(self) -> DreamDecoding:
        steps = self.steps or 0
        counts(gen_length=self.gen_length, steps=steps)
        sampling(self.temperature, self.top_k, self.top_p)
        keeps_text(self.early_stop, self.text_after_eos)
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
            if self.alg == "confidence_threshold" and self.gen_length % steps:
                raise ValueError(
                    f"steps={steps} must divide gen_length={self.gen_length} with alg='confidence_threshold'; "
                    f"allowed: {divisors(self.gen_length)}"
                )
            return self
        counts(block_length=self.block_length)
        assert self.block_length is not None
        divides(self.gen_length, self.block_length)
        steps_fit(steps, self.gen_length // self.block_length)
        if self.alg not in ("entropy", "confidence_threshold") or self.alg_temp:
            raise ValueError(
                f"cache={self.cache!r} decodes by alg='entropy' or 'confidence_threshold', without alg_temp; "
                f"given alg={self.alg!r}, alg_temp={self.alg_temp}"
            )
        return self


class Dream(Family):
    """Dream-org/Dream-v0-Base-7B and -Instruct-7B."""

    name = "dream"
    network = DreamModel
    decoding = DreamDecoding
    chat_template = CHAT_TEMPLATE
    predicts = "next"
    mask_texts = ("<|mask|>",)

    def likelihood_law(self, spec: ModelSpec) -> DreamLaw:
        return DreamLaw()

    def rule(self, decoding: DreamDecoding, spec: ModelSpec) -> Rule:
        d = decoding
        assert d.steps is not None
        cached, by_threshold = d.cache != "none", d.alg == "confidence_threshold"
        block_length = (d.block_length or d.gen_length) if cached else d.gen_length
        return Rule(
            gen_length=d.gen_length,
            block_length=block_length,
            steps_per_block=d.steps // (d.gen_length // block_length),
            predicts_next=True,
            how_many=self._how_many(d),
            schedule="even" if by_threshold else "time",
            which=RANKED_BY.get(d.alg, "confidence"),
            temperature=d.temperature,
            top_k=d.top_k or 0,
            top_p=1.0 if d.top_p is None else d.top_p,
            top_p_first=True,
            confidence_of="kept",
            order_temperature=d.alg_temp or 0.0,
            eps=d.eps,
            threshold=1.0 if d.threshold is None else d.threshold,
            cache=d.cache,
            commit_first=cached,
            draw_law="masked",
            counted="turns" if cached or by_threshold else "schedule",
            approximate=cached or by_threshold,
            early_stop=bool(d.early_stop),  # the published sampler never stops early
            **self.common(d, spec),
        )

    @staticmethod
    def _how_many(d: DreamDecoding) -> Any:
        if d.alg == "origin":
            return "bernoulli"
        if d.alg != "confidence_threshold":
            return "quota"
        return "carry" if d.cache == "none" else "threshold"


FAMILY = Dream()
