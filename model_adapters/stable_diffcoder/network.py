"""Stable-DiffCoder's published configuration and weight names, which are Llama's, over the shared backbone.

Facts: modeling_stable_diffcoder.py of ByteDance-Seed/Stable-DiffCoder-8B-Instruct, whose config.json says ``llama``.
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

BLOCK_LENGTH = 4
"""Of the published sampler; config.json does not name it."""


class StableDiffcoderConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "llama"

    vocab_size: Count = 155136
    hidden_size: Count = 4096
    intermediate_size: Count = 14336
    num_hidden_layers: Layers = 32
    num_attention_heads: Count = 32
    num_key_value_heads: Count = 8
    max_position_embeddings: Count = 8192
    rope_theta: Positive = 500000.0
    attention_bias: bool = False
    mlp_bias: bool = False


class StableDiffcoderForCausalLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = StableDiffcoderConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        biases = {"qkv_bias": config.attention_bias, "o_bias": config.attention_bias, "ff_bias": config.mlp_bias}
        return arch_from(config, "Stable-DiffCoder", WeightNames(**QWEN_NAMES), {}, block_length=BLOCK_LENGTH, **biases)
