"""LLaDA2.0 and 2.1 (inclusionAI): configuration, weight names, template, sampler settings."""

from dare_bench.model_adapters.llada2.family import FAMILY, FAMILY_21
from dare_bench.model_adapters.llada2.network import LLaDA2MoeConfig, LLaDA2MoeModelLM

__all__ = ["FAMILY", "FAMILY_21", "LLaDA2MoeConfig", "LLaDA2MoeModelLM"]
