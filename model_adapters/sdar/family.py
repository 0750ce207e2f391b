"""SDAR: decoding fields by the names of SDAR generate.py, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.family import Family
from dare_bench.model_adapters.fields import counts, keeps_text, sampling
from dare_bench.model_adapters.sampling.rule import HowMany, Rule
from dare_bench.model_adapters.sdar.network import SDARForCausalLM, SDARMoeForCausalLM
from dare_bench.model_adapters.sdar.template import CHAT_TEMPLATE
from dare_bench.types import Decoding, ModelSpec

EB_THRESHOLD = 0.35
STRATEGIES: dict[str, HowMany] = {
    "sequential": "sequential",
    "low_confidence_static": "quota",
    "low_confidence_dynamic": "dynamic",
    "entropy_bounded": "entropy_bound",
}


class SDARDecoding(Decoding):
    """SDAR's sampler. ``block_length`` is the checkpoint's and ``denoising_steps`` equals it unless given.

    ``cache="none"`` computes the whole prefix again in every forward: the same tokens, only slower.
    """

    block_length: int | None = None
    denoising_steps: int | None = None
    remasking_strategy: Literal["sequential", "low_confidence_static", "low_confidence_dynamic", "entropy_bounded"] = (
        "low_confidence_dynamic"
    )
    confidence_threshold: float = Field(default=0.85, ge=0, le=1)
    eb_threshold: float | None = Field(default=None, ge=0)
    top_k: int = 0
    top_p: float = 1.0
    stopping_criteria_idx: tuple[int, ...] | None = None
    """An id or ids that end an answer, instead of the checkpoint's."""
    cache: Literal["exact", "none"] = "exact"

    id_fields: ClassVar[tuple[str, ...]] = (*Decoding.id_fields, "stopping_criteria_idx")

    @field_validator("block_length", "denoising_steps", "top_k", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        return cls._whole(value)

    @field_validator("stopping_criteria_idx", mode="before")
    @classmethod
    def _stop_ids(cls, value: Any) -> Any:
        return cls._several(value)

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        values = dict(values)
        if values.get("denoising_steps") is None:
            values["denoising_steps"] = values.get("block_length")
        if values.get("remasking_strategy") == "entropy_bounded" and values.get("eb_threshold") is None:
            values["eb_threshold"] = EB_THRESHOLD
        return values

    @model_validator(mode="after")
    def _consistent(self) -> SDARDecoding:
        counts(gen_length=self.gen_length, block_length=self.block_length, denoising_steps=self.denoising_steps)
        sampling(self.temperature, self.top_k, self.top_p)
        keeps_text(self.early_stop, self.text_after_eos)
        if self.eb_threshold is not None and self.remasking_strategy != "entropy_bounded":
            raise ValueError(
                f"eb_threshold={self.eb_threshold} belongs to remasking_strategy='entropy_bounded', "
                f"not to {self.remasking_strategy!r}"
            )
        return self


class SDAR(Family):
    """JetLM/SDAR-1.7B-Chat, -4B-Chat, -8B-Chat and SDAR-30B-A3B-Chat."""

    name = "sdar"
    sft = {"normalise": "token"}  # noqa: RUF012
    network = SDARForCausalLM
    decoding = SDARDecoding
    chat_template = CHAT_TEMPLATE
    mask_texts = ("<|MASK|>", "<MASK>")
    eos_from_generation = True

    def network_of(self, raw: dict[str, Any]) -> type[DiffusionNetwork]:
        return SDARMoeForCausalLM if raw.get("model_type") == "sdar_moe" else SDARForCausalLM

    def defaults(self, spec: ModelSpec) -> dict[str, Any]:
        return {"block_length": spec.block_length}

    def common(self, decoding: SDARDecoding, spec: ModelSpec) -> dict[str, Any]:
        return {**super().common(decoding, spec), "eos_ids": decoding.stopping_criteria_idx or spec.eos_ids}

    def _plain(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        plain = super()._plain(fields)
        stop, eos = (plain.get(name) for name in ("stopping_criteria_idx", "eos_id"))
        if stop is not None and eos is not None:
            raise DecodingError(
                f"stopping_criteria_idx={stop!r} and eos_id={eos!r} are names of one thing; give one of them"
            )
        return plain

    def rule(self, decoding: SDARDecoding, spec: ModelSpec) -> Rule:
        d = decoding
        assert d.block_length is not None and d.denoising_steps is not None
        bounded = d.remasking_strategy == "entropy_bounded"
        # The published code stops after a block with a stop id, if it was given any.
        stops = bool(d.stopping_criteria_idx) if d.early_stop is None else d.early_stop
        return Rule(
            gen_length=d.gen_length,
            block_length=d.block_length,
            steps_per_block=d.denoising_steps,
            grid="absolute",
            causal=True,
            how_many=STRATEGIES[d.remasking_strategy],
            schedule="block",
            which="order" if d.remasking_strategy == "sequential" else "confidence",
            temperature=d.temperature,
            top_k=d.top_k,
            top_p=d.top_p,
            confidence_of="tempered",
            threshold=d.confidence_threshold,
            entropy_bound=d.eb_threshold or 0.0,
            suppressed=(spec.mask_id,) if bounded else (),
            cache=d.cache,
            draw_law="block",
            counted="commit",
            early_stop=stops and d.text_after_eos == "cut",
            **self.common(d, spec),
        )


FAMILY = SDAR()
