"""Dream's published configuration and weight names over the shared backbone.

Facts: Dream-org/Dream-v0-Instruct-7B config.json and the key names of its shards (Qwen2.5's).
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

SUPPORTED: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False, None), "use_mrope": (False, None)}


class DreamConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "Dream"

    vocab_size: Count = 152064
    hidden_size: Count = 3584
    intermediate_size: Count = 18944
    num_hidden_layers: Layers = 28
    num_attention_heads: Count = 28
    num_key_value_heads: Count = 4
    max_position_embeddings: Count = 131072
    rope_theta: Positive = 1000000.0


class DreamModel(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs. Row i predicts token i + 1."""

    config_class = DreamConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        return arch_from(config, "Dream", WeightNames(**QWEN_NAMES), SUPPORTED, qkv_bias=True)
