"""DiffusionGemma: decoding fields by the names of its generate, special ids.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from dare_bench.errors import DecodingError, PromptError
from dare_bench.model_adapters.diffusion_gemma.inputs import SoftPredictions
from dare_bench.model_adapters.diffusion_gemma.likelihood import EncoderEstimator
from dare_bench.model_adapters.diffusion_gemma.network import DiffusionGemmaForBlockDiffusion
from dare_bench.model_adapters.diffusion_gemma.renoise import Renoise
from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.fields import Count, NaturalNumber
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import Decoding, ModelSpec

FINAL_TEMPERATURE = 0.4


class DiffusionGemmaDecoding(SamplerFields):
    """DiffusionGemma's sampler. ``temperature`` (published as ``t_max``) is that of a block's first forward; it falls
    to ``t_min`` in ``max_denoising_steps`` forwards. ``block_length`` is the checkpoint's ``canvas_length``.

    At temperature 0, which the published code does not have, the most probable tokens are accepted by their entropies
    at temperature 1 (tier A). ``cache="none"`` computes the whole prefix again in every forward: the same tokens.
    ``margin`` is refused: the rule that ends a canvas has none.
    """

    own_strategy = frozenset({"max_denoising_steps", "entropy_bound", "stability_threshold", "confidence_threshold"})
    aliases: ClassVar[dict[str, str]] = {
        **SamplerFields.aliases,
        "canvas_length": "block_length",
        "t_max": "temperature",
    }

    gen_length: Count = 256
    block_length: Count
    temperature: float = Field(default=0.8, ge=0)
    t_min: float = Field(default_factory=lambda fields: min(FINAL_TEMPERATURE, fields["temperature"]), ge=0)
    max_denoising_steps: Count = 48
    entropy_bound: float = Field(default=0.1, gt=0)
    stability_threshold: NaturalNumber = 1
    confidence_threshold: float = Field(default=0.005, gt=0)
    cache: Literal["exact", "none"] = "exact"

    @property
    def deterministic(self) -> bool:
        return False  # the canvas is noise at every temperature

    @model_validator(mode="after")
    def _consistent(self) -> DiffusionGemmaDecoding:
        if self.t_min > self.temperature:
            raise ValueError(f"t_min={self.t_min} must be at most temperature={self.temperature}, from which it falls")
        if self.predictions:
            raise ValueError(
                "predictions=True is not known for this sampler, which opens all tokens again; leave it out"
            )
        if self.rng == "reference" and (self.temperature == 0 or self.strategy is not None):
            way = "temperature=0" if self.temperature == 0 else "strategy="
            raise ValueError(f"rng='reference' with {way}, which the published code does not have; use rng='ours'")
        return self


class DiffusionGemma(Family):
    """google/diffusiongemma-26B-A4B-it, for text."""

    name = "diffusion_gemma"
    network = DiffusionGemmaForBlockDiffusion
    decoding = DiffusionGemmaDecoding
    noise = "uniform"
    eos_from_generation = True

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        text = config.get_text_config()
        for name in ("eos_token_id", "pad_token_id"):
            if getattr(config, name, None) is None:
                setattr(config, name, getattr(text, name, None))
        return super().special_ids(config, tokenizer, generation)

    def check_prompt(self, tokens: Sequence[int], config: Any) -> None:
        image = getattr(config, "image_token_id", None)
        if image in tokens:
            raise PromptError(
                f"the prompt holds an image (token id {image}); images are not supported here: give text alone"
            )

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        if fields.get("mask_id") is not None:
            raise DecodingError(f"mask_id={fields['mask_id']}: {self.name} has no mask token; leave it out")
        return super().resolve(fields, spec)

    def likelihood_estimator(self, spec: ModelSpec) -> EncoderEstimator:
        return EncoderEstimator()

    def sampler(self, decoding: DiffusionGemmaDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        return self.compose(
            d,
            spec,
            Renoise(
                bound=d.entropy_bound,
                steps=d.max_denoising_steps,
                stability=d.stability_threshold,
                confidence=d.confidence_threshold,
                open_id=spec.open_id,
            ),
            d.block_length,
            ReferencePolicy(noise="renoise"),
            early_stop=True,
            approximate=d.temperature == 0,
            stopping={"cut_at_eos": d.text_after_eos == "cut"},
            inputs=SoftPredictions,
            tokens=TokenPolicy(
                temperature=d.temperature,
                cooled_to=d.t_min,
                cooling_steps=d.max_denoising_steps,
                confidence_of="tempered",
                alternatives=1,
            ),
            attention=AttentionPolicy(
                causal=True, clean_prefix=True, cache=CACHES["clean" if d.cache == "exact" else "none"]
            ),
        )


FAMILY = DiffusionGemma()
