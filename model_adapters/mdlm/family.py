"""MDLM and BD3-LM: decoding fields, special ids.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import Field, model_validator

from dare_bench.errors import DecodingError
from dare_bench.model_adapters.backbone import DiffusionNetwork
from dare_bench.model_adapters.family import Family, SamplerFields, SpecialIds
from dare_bench.model_adapters.fields import Count
from dare_bench.model_adapters.mdlm.network import BD3LM, MDLM, mask_of
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies.quota import BlockQuota
from dare_bench.model_adapters.sampling.strategies.timed import Bernoulli
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import Decoding, ModelSpec

LAST_TIME = 1e-5
"""Of MDLM's grid of times."""


class DiTDecoding(SamplerFields):
    """The published samplers. MDLM's (``ddpm``) writes each masked position with probability ``1 - s / t`` in each of
    ``steps`` forwards. BD3-LM's (``first_hitting``) writes one random position of a block in each forward, so it has no
    ``steps``. ``steps`` equals ``gen_length`` unless given.
    """

    own_strategy = frozenset({"steps"})

    steps: Count | None = None
    block_length: Count | None = None
    temperature: float = Field(default=1.0, ge=0)

    @property
    def deterministic(self) -> bool:
        return False  # the order of positions is random at every temperature

    @model_validator(mode="after")
    def _consistent(self) -> DiTDecoding:
        if self.rng == "reference":
            raise ValueError("rng='reference': the published random numbers depend on the batch; use rng='ours'")
        if self.block_length is not None and self.steps is not None:
            raise ValueError(
                f"steps={self.steps} with blocks (block_length={self.block_length}): BD3-LM's sampler writes one token "
                "in each forward; leave it out"
            )
        return self


class MDLMFamily(Family):
    """kuleshov-group/mdlm-owt, -noeos-owt, and bd3lm-owt-block_size4, -8, -16 and -1024-pretrain."""

    name = "mdlm"
    network: type[DiffusionNetwork] = MDLM
    decoding = DiTDecoding

    def network_of(self, raw: dict[str, Any]) -> type[DiffusionNetwork]:
        return BD3LM if raw.get("model_type") == "bd3lm" else MDLM

    def special_ids(self, config: Any, tokenizer: Any | None, generation: Mapping[str, Any]) -> SpecialIds:
        """The mask is the last token; the GPT-2 tokenizer does not have it."""
        ids = super().special_ids(config, tokenizer, generation)
        return replace(
            ids,
            mask=mask_of(config),
            mask_from="the last token of the vocabulary" if ids.mask is None else ids.mask_from,
        )

    def resolve(self, fields: Mapping[str, Any], spec: ModelSpec) -> Decoding:
        if fields.get("block_length") is not None and spec.block_length is None:
            raise DecodingError(
                f"block_length={fields['block_length']}: this checkpoint was trained without blocks; leave it out"
            )
        return super().resolve(fields, spec)

    def sampler(self, decoding: DiTDecoding, spec: ModelSpec) -> Sampler:
        d = decoding
        blocks = d.block_length is not None
        return self.compose(
            d,
            spec,
            BlockQuota(rank_by="random") if blocks else Bernoulli(steps=d.steps or d.gen_length, eps=LAST_TIME),
            d.block_length or d.gen_length,
            ReferencePolicy(count="forwards"),
            tokens=TokenPolicy(temperature=d.temperature),
            attention=AttentionPolicy(causal=blocks, cache=CACHES["exact" if blocks else "none"]),
        )


FAMILY = MDLMFamily()
