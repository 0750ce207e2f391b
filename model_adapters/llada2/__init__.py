"""LLaDA2.0, 2.1 and 2.2 (inclusionAI): configuration, weight names, template, sampler settings."""

from dare_bench.model_adapters.llada2.family import FAMILY, FAMILY_21, FAMILY_22
from dare_bench.model_adapters.llada2.network import LLaDA2MoeConfig, LLaDA2MoeModelLM

__all__ = ["FAMILY", "FAMILY_21", "FAMILY_22", "LLaDA2MoeConfig", "LLaDA2MoeModelLM"]
