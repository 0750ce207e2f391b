"""Open-dCoder's published configuration, which is Qwen2's, and its weight names over the shared backbone.

Facts: fredzzp/open-dcoder-0.5B config.json (Qwen2.5-Coder-0.5B's) and veomni/models/transformers/qwen2 of Open-dLLM.
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import Count, Layers, Positive, StandardConfig, arch_from

SUPPORTED: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False, None)}


class OpenDCoderConfig(StandardConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "qwen2"

    vocab_size: Count = 151936
    hidden_size: Count = 896
    intermediate_size: Count = 4864
    num_hidden_layers: Layers = 24
    num_attention_heads: Count = 14
    num_key_value_heads: Count = 2
    max_position_embeddings: Count = 32768
    rope_theta: Positive = 1000000.0
    tie_word_embeddings: bool = True


class OpenDCoderModel(DiffusionNetwork):
    """Qwen2 without its causal mask. Row i predicts token i + 1."""

    config_class = OpenDCoderConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        return arch_from(config, "Open-dCoder", WeightNames(**QWEN_NAMES), SUPPORTED, qkv_bias=True)
