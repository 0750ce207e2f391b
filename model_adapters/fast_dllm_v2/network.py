"""Fast-dLLM v2's published configuration and weight names over the shared backbone.

Facts: Efficient-Large-Model/Fast_dLLM_v2_7B config.json and the key names of its shards (Qwen2.5's).
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

SUPPORTED: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False, None)}


class Fast_dLLM_QwenConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "Fast_dLLM_Qwen"

    vocab_size: Count = 152064
    hidden_size: Count = 3584
    intermediate_size: Count = 18944
    num_hidden_layers: Layers = 28
    num_attention_heads: Count = 28
    num_key_value_heads: Count = 4
    max_position_embeddings: Count = 32768
    rope_theta: Positive = 1000000.0
    bd_size: Count = 32


class Fast_dLLM_QwenForCausalLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs. Row i predicts token i + 1;
    attention is causal over blocks of ``bd_size``."""

    config_class = Fast_dLLM_QwenConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        names = WeightNames(**QWEN_NAMES)
        return arch_from(config, "Fast-dLLM v2", names, SUPPORTED, qkv_bias=True, block_length=config.bd_size)
