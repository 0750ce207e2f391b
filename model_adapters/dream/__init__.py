"""Dream (Dream-org/Dream-v0-Base-7B, -Instruct-7B): configuration, weight names, template, sampler settings."""

from dare_bench.model_adapters.dream.family import FAMILY
from dare_bench.model_adapters.dream.network import DreamConfig, DreamModel

__all__ = ["FAMILY", "DreamConfig", "DreamModel"]
