"""SDAR (JetLM/SDAR-*-Chat, dense and MoE): configuration, weight names, template, sampler settings."""

from dare_bench.model_adapters.sdar.family import FAMILY
from dare_bench.model_adapters.sdar.network import SDARConfig, SDARForCausalLM, SDARMoeConfig, SDARMoeForCausalLM

__all__ = ["FAMILY", "SDARConfig", "SDARForCausalLM", "SDARMoeConfig", "SDARMoeForCausalLM"]
