"""LLaDA: decoding fields by the names of ML-GSAI/LLaDA generate.py, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.family import Family, SamplerFields
from dare_bench.model_adapters.fields import Count, Probability, divides, idle_steps, steps_fit
from dare_bench.model_adapters.llada.network import LLaDAModelLM
from dare_bench.model_adapters.replay.published import PublishedTies
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.scores import RankBy
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import Factor, Threshold
from dare_bench.model_adapters.sampling.strategies.quota import Quota
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import ModelSpec

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"
)
"""The assistant header always follows, as in the published template."""


class LLaDADecoding(SamplerFields):
    """LLaDA's sampler. ``steps`` and ``block_length`` equal ``gen_length`` unless given.

    ``threshold`` and ``factor`` are Fast-dLLM's parallel decoding, ``cache`` its prefix and dual caches (arXiv
    2505.22618): approximate, tier A.
    """

    own_strategy = frozenset({"steps", "remasking", "threshold", "factor"})

    steps: Count = Field(default_factory=lambda fields: fields["gen_length"])
    block_length: Count = Field(default_factory=lambda fields: fields["gen_length"])
    cfg_scale: float = Field(default=0.0, ge=0)
    remasking: Literal["low_confidence", "random"] = "low_confidence"
    logits_eos_inf: bool = False
    confidence_eos_eot_inf: bool = False
    threshold: Probability | None = None
    factor: float | None = Field(default=None, gt=0)
    cache: Literal["none", "prefix", "dual"] = "none"
    confidence_dtype: Literal["float32", "float64"] = Field(
        default_factory=lambda fields: "float64" if _is_fast(fields) else "float32"
    )

    @model_validator(mode="after")
    def _consistent(self) -> LLaDADecoding:
        if not (self.strategy and self.strategy.grows):
            divides(self.gen_length, self.block_length)
        if self.steps_per_block != self.steps:  # else they are those of each block
            steps_fit(self.steps, max(1, self.gen_length // self.block_length))
        if self.threshold is not None and self.factor is not None:
            raise ValueError(f"threshold={self.threshold} and factor={self.factor} exclude each other; give one")
        if self.cache != "none" and (self.cfg_scale > 0 or self.logits_eos_inf or self.confidence_eos_eot_inf):
            raise ValueError(
                f"cache={self.cache!r} is Fast-dLLM's sampler, which has no cfg_scale, logits_eos_inf or "
                "confidence_eos_eot_inf; use cache='none' with them"
            )
        return self

    @property
    def steps_per_block(self) -> int:
        return self.steps // max(1, self.gen_length // self.block_length)

    @property
    def deterministic(self) -> bool:
        return super().deterministic and self.remasking != "random"

    @property
    def remark(self) -> str:
        return idle_steps(self.steps_per_block, self.block_length)


def _is_fast(fields: Mapping[str, Any]) -> bool:
    """Is this one of Fast-dLLM's samplers?"""
    return fields["threshold"] is not None or fields["factor"] is not None or fields["cache"] != "none"


class LLaDA(Family):
    """GSAI-ML/LLaDA-8B-Base, -Instruct and LLaDA-1.5."""

    name = "llada"
    network: type[DiffusionNetwork] = LLaDAModelLM
    decoding = LLaDADecoding
    chat_template: str | None = CHAT_TEMPLATE
    has_cfg_likelihood = True
    mask_texts: tuple[str, ...] = ("<|mdm_mask|>",)
    eot_text: str | None = "<|eot_id|>"

    def sampler(self, decoding: LLaDADecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        eot = () if spec.eot_id is None else (spec.eot_id,)
        fast = _is_fast(dict(d))
        uncounted: tuple[int, ...] = ()
        if d.confidence_eos_eot_inf:
            # The reference masks EOS in the noised tensor and EOT in the plain one. At temperature 0 these are the same
            # tensor, so both are excluded from the softmax; above it, only EOT is. Published scores depend on this.
            uncounted = (*spec.eos_ids, *eot) if d.temperature == 0 else eot
        return self.compose(
            d,
            spec,
            self._strategy(d, ties=bool(uncounted)),
            d.block_length,
            ReferencePolicy(noise="gumbel", count="forwards" if fast else "schedule"),
            approximate=fast,
            tokens=TokenPolicy(
                temperature=d.temperature,
                suppressed=spec.eos_ids if d.logits_eos_inf else (),
                uncounted=uncounted,
                confidence_float64=d.confidence_dtype == "float64",
            ),
            attention=AttentionPolicy(cache=CACHES[d.cache], cfg_scale=d.cfg_scale),
        )

    @staticmethod
    def _strategy(d: LLaDADecoding, ties: bool) -> Strategy:
        steps = d.steps_per_block
        rank_by: RankBy = "random" if d.remasking == "random" else "confidence"
        if d.threshold is not None:
            return Threshold(steps=steps, threshold=d.threshold, rank_by=rank_by)
        if d.factor is not None:
            return Factor(steps=steps, factor=d.factor, rank_by=rank_by)
        quota = Quota(steps=steps, rank_by=rank_by)
        return PublishedTies(inner=quota, tie_score=0.0) if ties and rank_by == "confidence" else quota


FAMILY = LLaDA()
