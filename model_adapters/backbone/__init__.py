"""One transformer for all families: packed tokens in, logits (or losses) out, only where they are requested."""

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.model_adapters.backbone.arch import (
    QWEN_NAMES,
    Arch,
    LayerAttention,
    MoE,
    RopeScaling,
    WeightNames,
    Yarn,
)
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.network import DiffusionNetwork, NetworkOutput

__all__ = [
    "QWEN_NAMES",
    "Arch",
    "Cached",
    "DiffusionNetwork",
    "KVStore",
    "LayerAttention",
    "MoE",
    "NetworkOutput",
    "Plan",
    "RopeScaling",
    "WeightNames",
    "Yarn",
]
