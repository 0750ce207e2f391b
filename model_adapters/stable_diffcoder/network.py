"""Stable-DiffCoder's published configuration and weight names, which are Llama's, over the shared backbone.

Facts: modeling_stable_diffcoder.py of ByteDance-Seed/Stable-DiffCoder-8B-Instruct, whose config.json says ``llama``.
"""

from __future__ import annotations

from typing import Any

from dare_bench.model_adapters.backbone import QWEN_NAMES, Arch, DiffusionNetwork, WeightNames
from dare_bench.model_adapters.configs import LlamaConfig, Positive, arch_from

BLOCK_LENGTH = 4
"""Of the published sampler; config.json does not name it."""


class StableDiffcoderConfig(LlamaConfig):
    """The published fields; others are kept and saved unchanged."""

    model_type = "llama"

    rope_theta: Positive = 500000.0


class StableDiffcoderForCausalLM(DiffusionNetwork):
    """The published class name, so that ``architectures`` is correct in saved configs."""

    config_class = StableDiffcoderConfig

    @classmethod
    def arch_of(cls, config: Any) -> Arch:
        names = WeightNames(**QWEN_NAMES)
        return arch_from(config, "Stable-DiffCoder", names, {}, block_length=BLOCK_LENGTH, **config.biases)
