"""One transformer for all families: packed tokens in, logits (or losses) out, only where they are asked for."""

from dare_bench.model_adapters.backbone.arch import Arch, Names
from dare_bench.model_adapters.backbone.network import DiffusionNetwork, NetworkOutput
from dare_bench.model_adapters.backbone.plan import Plan

__all__ = ["Arch", "DiffusionNetwork", "Names", "NetworkOutput", "Plan"]
