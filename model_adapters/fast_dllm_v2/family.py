"""Fast-dLLM v2: decoding fields by the names of its generate, special ids, chat template.

Where the published sources disagree, README.md in this folder says which side is canonical here.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from dare_bench.model_adapters.chatml import CHAT_TEMPLATE
from dare_bench.model_adapters.family import Family, SamplerFields
from dare_bench.model_adapters.fast_dllm_v2.likelihood import FastDLLMEstimator
from dare_bench.model_adapters.fast_dllm_v2.network import Fast_dLLM_QwenForCausalLM
from dare_bench.model_adapters.fast_dllm_v2.sub_blocks import SubBlockCache, SubBlocks
from dare_bench.model_adapters.fields import Count, Probability, TopP, divisors
from dare_bench.model_adapters.sampling.attention import AttentionPolicy
from dare_bench.model_adapters.sampling.caches import CACHES
from dare_bench.model_adapters.sampling.draws import ReferencePolicy
from dare_bench.model_adapters.sampling.sampler import Sampler
from dare_bench.model_adapters.sampling.strategies.bounded import Dynamic
from dare_bench.model_adapters.sampling.strategies.wrapped import FirstToken
from dare_bench.model_adapters.sampling.tokens import TokenPolicy
from dare_bench.types import ModelSpec

SMALL_BLOCK_SIZE = 8


def _small_block_size(block_length: int) -> int:
    """The largest divisor of the block length up to the published size."""
    return max(size for size in range(1, SMALL_BLOCK_SIZE + 1) if block_length % size == 0)


class FastDLLMv2Decoding(SamplerFields):
    """Fast-dLLM v2's sampler. ``block_length`` (published as ``block_size``) is the checkpoint's unless given.

    ``cache="sub_block"`` is the published ``use_block_cache=True``, which also keeps the keys and values of a block's
    other sub-blocks: approximate, tier A. ``cache="none"`` computes the whole prefix again in every forward: the same
    tokens as ``exact``, only slower.
    """

    own_strategy = frozenset({"threshold", "small_block_size"})
    aliases: ClassVar[dict[str, str]] = {**SamplerFields.aliases, "block_size": "block_length"}

    block_length: Count
    small_block_size: Count = Field(default_factory=lambda fields: _small_block_size(fields["block_length"]))
    threshold: Probability = 0.9
    top_p: TopP = 0.95
    cache: Literal["exact", "none", "sub_block"] = "exact"

    @model_validator(mode="after")
    def _consistent(self) -> FastDLLMv2Decoding:
        if self.block_length % self.small_block_size:
            raise ValueError(
                f"block_length={self.block_length} is not divisible by small_block_size={self.small_block_size}; "
                f"allowed sizes: {divisors(self.block_length)}"
            )
        return self


class FastDLLMv2(Family):
    """Efficient-Large-Model/Fast_dLLM_v2_1.5B and _7B."""

    name = "fast_dllm_v2"
    sft = {"noise": "coupled", "draws": 2, "weight": "plain", "normalize": "mask"}  # noqa: RUF012
    network = Fast_dLLM_QwenForCausalLM
    decoding = FastDLLMv2Decoding
    chat_template = CHAT_TEMPLATE
    predicts = "next"
    mask_texts = ("|<MASK>|",)

    def likelihood_estimator(self, spec: ModelSpec) -> FastDLLMEstimator:
        return FastDLLMEstimator()

    def sampler(self, decoding: FastDLLMv2Decoding, spec: ModelSpec) -> Sampler:
        d = decoding
        cut, by_sub_blocks = d.text_after_eos == "cut", d.cache == "sub_block"
        stops = cut and d.early_stop is not False  # the published sampler stops at an EOS without masks before it
        return self.compose(
            d,
            spec,
            SubBlocks(inner=Dynamic(threshold=d.threshold), length=d.small_block_size),
            d.block_length,
            ReferencePolicy(noise="block" if d.strategy else "sub_block", count="commit_ahead"),
            around=FirstToken,
            early_stop=True,
            approximate=by_sub_blocks,
            stopping={"stop_in_block": stops, "stop_when_filled": stops, "cut_at_eos": cut},
            tokens=TokenPolicy(
                temperature=d.temperature,
                top_p=d.top_p if d.temperature > 0 else 1.0,
                confidence_of="kept",
                greedy_first=d.strategy is None,
            ),
            attention=AttentionPolicy(
                causal=True,
                predicts_next=True,
                cache=SubBlockCache(d.small_block_size) if by_sub_blocks else CACHES[d.cache],
            ),
        )


FAMILY = FastDLLMv2()
