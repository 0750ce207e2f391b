"""SDAR: decoding fields by the names of SDAR generate.py, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.family import Family, SamplerFields
from dare_bench.model_adapters.fields import Count, NaturalNumber, Probability, TopP, idle_steps
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies import Strategy
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic, EntropyBound
from dare_bench.model_adapters.sampling.strategies.quota import BlockQuota, Sequential
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.model_adapters.sdar.network import SDARForCausalLM, SDARMoeForCausalLM
from dare_bench.model_adapters.sdar.template import CHAT_TEMPLATE
from dare_bench.types import Decoding, ModelSpec

EB_THRESHOLD = 0.35


class SDARDecoding(SamplerFields):
    """SDAR's sampler. ``block_length`` is the checkpoint's and ``denoising_steps`` equals it unless given.

    ``cache="none"`` computes the whole prefix again in every forward: the same tokens, only slower.
    """

    own_strategy = frozenset({"denoising_steps", "remasking_strategy", "confidence_threshold", "eb_threshold"})

    block_length: Count
    denoising_steps: Count = Field(default_factory=lambda fields: fields["block_length"])
    remasking_strategy: Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"] = (
        "low_confidence_dynamic"
    )
    confidence_threshold: Probability = 0.85
    eb_threshold: Annotated[float, Field(ge=0)] | None = Field(
        default_factory=lambda fields: EB_THRESHOLD if fields["remasking_strategy"] == "entropy_bounded" else None
    )
    top_k: NaturalNumber = 0
    top_p: TopP = 1.0
    stopping_criteria_idx: tuple[int, ...] | None = None
    """An id or ids that end an answer, instead of the checkpoint's."""
    cache: Literal["exact", "none"] = "exact"

    id_fields: ClassVar[tuple[str, ...]] = (*Decoding.id_fields, "stopping_criteria_idx")

    @field_validator("stopping_criteria_idx", mode="before", json_schema_input_type=int | Sequence[int] | None)
    @classmethod
    def _stop_ids(cls, value: Any) -> Any:
        return cls._several(value)

    @model_validator(mode="after")
    def _consistent(self) -> SDARDecoding:
        if self.eb_threshold is not None and self.remasking_strategy != "entropy_bounded":
            raise ValueError(
                f"eb_threshold={self.eb_threshold} belongs to remasking_strategy='entropy_bounded', "
                f"not to {self.remasking_strategy!r}"
            )
        return self

    @property
    def remark(self) -> str:
        return idle_steps(self.denoising_steps, self.block_length)


STRATEGIES: Mapping[str, Callable[[SDARDecoding], Strategy]] = {
    "sequential": lambda d: Sequential(steps=d.denoising_steps),
    "low_confidence_static": lambda d: BlockQuota(steps=d.denoising_steps),
    "low_confidence_dynamic": lambda d: Dynamic(steps=d.denoising_steps, threshold=d.confidence_threshold),
    "entropy_bounded": lambda d: EntropyBound(steps=d.denoising_steps, bound=d.eb_threshold or 0.0),
}


class SDAR(Family):
    """JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat and SDAR-30B-A3B-Chat."""

    name = "sdar"
    sft = {"normalize": "token"}  # noqa: RUF012
    network = SDARForCausalLM
    decoding = SDARDecoding
    chat_template = CHAT_TEMPLATE
    mask_texts = ("<|MASK|>", "<MASK>")
    eos_from_generation = True

    def network_of(self, raw: dict[str, Any]) -> type[DiffusionNetwork]:
        return SDARMoeForCausalLM if raw.get("model_type") == "sdar_moe" else SDARForCausalLM

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        stop, eos = (fields.get(name) for name in ("stopping_criteria_idx", "eos_id"))
        if stop is not None and eos is not None:
            raise DecodingError(
                f"stopping_criteria_idx={stop!r} and eos_id={eos!r} are names of one thing; give one of them"
            )
        return super().resolve(fields, spec)

    def sampler(self, decoding: SDARDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        bounded = d.remasking_strategy == "entropy_bounded"
        return self.compose(
            d,
            spec,
            STRATEGIES[d.remasking_strategy](d),
            d.block_length,
            ReferencePolicy(noise="block", count="commit"),
            early_stop=bool(d.stopping_criteria_idx),  # the published code stops only at these
            stopping={"eos_ids": d.stopping_criteria_idx or spec.eos_ids},
            tokens=TokenPolicy(
                temperature=d.temperature,
                top_k=d.top_k,
                top_p=d.top_p,
                confidence_of="tempered",
                suppressed=(spec.mask,) if bounded else (),
            ),
            attention=AttentionPolicy(causal=True, cache=CACHES[d.cache]),
        )


FAMILY = SDAR()
