"""LLaDA (GSAI-ML/LLaDA-8B-Base, -Instruct, LLaDA-1.5): configuration, weight names, template, sampler settings."""

from dare_bench.model_adapters.llada.family import FAMILY
from dare_bench.model_adapters.llada.network import LLaDAConfig, LLaDAModelLM

__all__ = ["FAMILY", "LLaDAConfig", "LLaDAModelLM"]
