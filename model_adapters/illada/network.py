"""iLLaDA's published configuration and weight names, which are Llama's, over the shared backbone.

Facts: modeling_illada.py of GSAI-ML/iLLaDA-8B-Base and -Instruct, and their model cards.
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import LlamaConfig, arch_from

SUPPORTED: dict[str, tuple[Any, ...]] = {"layer_norm_eps": (None,)}
"""With ``layer_norm_eps`` the published network has LayerNorm with biases in place of RMSNorm."""


class ILLaDAConfig(LlamaConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "illada"

    tie_word_embeddings: bool = True


class ILLaDAForCausalLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = ILLaDAConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        return arch_from(config, "iLLaDA", WeightNames(**QWEN_NAMES), SUPPORTED, **config.biases)
