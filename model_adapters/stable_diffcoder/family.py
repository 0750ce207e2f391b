"""Stable-DiffCoder: decoding fields by the names of its ``generate``, special ids.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dare_bench.model_adapters.family import Family, SamplerFields
from dare_bench.model_adapters.fields import Count, Probability, divides, steps_fit
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.scores import RankBy
from dare_bench.model_adapters.sampling.strategies.bounded import Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Quota
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.model_adapters.stable_diffcoder.network import StableDiffcoderForCausalLM
from dare_bench.types import ModelSpec


class StableDiffCoderDecoding(SamplerFields):
    """Stable-DiffCoder's sampler: LLaDA's steps in blocks that attend to what is before them. ``steps`` equals
    ``gen_length`` unless given. ``threshold`` writes all tokens of at least this probability, and the best."""

    own_strategy = frozenset({"steps", "remasking", "threshold"})

    steps: Count = Field(default_factory=lambda fields: fields["gen_length"])
    block_length: Count
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    threshold: Probability | None = None
    cache: Literal["exact", "none"] = "exact"

    @model_validator(mode="after")
    def _consistent(self) -> StableDiffCoderDecoding:
        divides(self.gen_length, self.block_length)
        steps_fit(self.steps, self.gen_length // self.block_length)
        if self.rng == "reference":
            raise ValueError("rng='reference' is not known for this sampler; use rng='ours'")
        return self

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.remasking != "random"


class StableDiffCoder(Family):
    """ByteDance-Seed/Stable-DiffCoder-8B-Base and -Instruct."""

    name = "stable_diffcoder"
    network = StableDiffcoderForCausalLM
    decoding = StableDiffCoderDecoding
    mask_texts = ("<[MASK]>",)
    published_mask = 5
    whole_blocks = False

    def sampler(self, decoding: StableDiffCoderDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        steps = d.steps // (d.gen_length // d.block_length)
        rank_by: RankBy = "random" if d.remasking == "random" else "confidence"
        quota = Quota(steps=steps, rank_by=rank_by)
        return self.compose(
            d,
            spec,
            quota if d.threshold is None else Threshold(threshold=d.threshold, rank_by=rank_by),
            d.block_length,
            ReferencePolicy(count="prefix"),
            early_stop=True,
            tokens=TokenPolicy(temperature=d.temperature, confidence_float64=True),
            attention=AttentionPolicy(causal=True, cache=CACHES[d.cache]),
        )


FAMILY = StableDiffCoder()
