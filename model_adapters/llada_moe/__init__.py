"""LLaDA-MoE (inclusionAI/LLaDA-MoE-7B-A1B): configuration and weight names; LLaDA's sampler."""

from dare_bench.model_adapters.llada_moe.family import FAMILY
from dare_bench.model_adapters.llada_moe.network import LLaDAMoEConfig, LLaDAMoEModelLM

__all__ = ["FAMILY", "LLaDAMoEConfig", "LLaDAMoEModelLM"]
