"""Nemotron-Labs-Diffusion: decoding fields by the names of its ``generate``, special ids.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import model_validator

from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.fields import Count, Probability, divides
from dare_bench.model_adapters.nemotron_diffusion.network import NemotronLabsDiffusionModel
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies.bounded import Threshold
from dare_bench.model_adapters.sampling.strategies.quota import BlockQuota
from dare_bench.model_adapters.sampling.strategies.wrapped import FirstToken
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import ModelSpec


class NemotronDiffusionDecoding(SamplerFields):
    """Nemotron-Labs-Diffusion's sampler. The state before a block predicts its first token, in a forward of its own;
    then each forward writes the most confident token, or with ``threshold`` all of at least this probability, and the
    best.

    ``block_length=1`` decodes from left to right, as the published ``ar_generate``. ``cache="none"`` computes the whole
    prefix again in every forward: the same tokens.
    """

    own_strategy = frozenset({"threshold"})

    block_length: Count
    threshold: Probability | None = None
    cache: Literal["exact", "none"] = "exact"

    @model_validator(mode="after")
    def _consistent(self) -> NemotronDiffusionDecoding:
        divides(self.gen_length, self.block_length)
        if self.rng == "reference":
            raise ValueError("rng='reference' is not known for this sampler; use rng='ours'")
        return self


class NemotronDiffusion(Family):
    """nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B and their -Base."""

    name = "nemotron_diffusion"
    network = NemotronLabsDiffusionModel
    decoding = NemotronDiffusionDecoding
    blocks_from = "answer"

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        return replace(super().special_ids(config, tokenizer, generation), bos=getattr(config, "bos_token_id", None))

    @staticmethod
    def attention(cache: str) -> AttentionPolicy:
        kept = CACHES["clean" if cache == "exact" else "none"]
        return AttentionPolicy(causal=True, clean_prefix=True, predicts_next="first", cache=kept)

    def greedy_sampler(self, n: int, spec: ModelSpec, cfg_scale: float = 0.0) -> Sampler:
        assert spec.block_length is not None
        return Sampler(n, spec.block_length, FirstToken(inner=BlockQuota()), attention=self.attention("exact"))

    def sampler(self, decoding: NemotronDiffusionDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        cut = d.text_after_eos == "cut"
        stops = cut and d.early_stop is not False  # the published sampler stops at an EOS without masks before it
        return self.compose(
            d,
            spec,
            BlockQuota() if d.threshold is None else Threshold(threshold=d.threshold),
            d.block_length,
            ReferencePolicy(),
            around=FirstToken,
            early_stop=True,
            stopping={"stop_in_block": stops, "stop_when_filled": stops, "cut_at_eos": cut},
            lead=() if spec.bos_id is None else (spec.bos_id,),
            tokens=TokenPolicy(temperature=d.temperature),
            attention=self.attention(d.cache),
        )


FAMILY = NemotronDiffusion()
