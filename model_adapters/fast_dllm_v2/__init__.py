"""Fast-dLLM v2 (Efficient-Large-Model/Fast_dLLM_v2_*): configuration, weight names, sampler settings."""

from dare_bench.model_adapters.fast_dllm_v2.family import FAMILY
from dare_bench.model_adapters.fast_dllm_v2.network import Fast_dLLM_QwenConfig, Fast_dLLM_QwenForCausalLM

__all__ = ["FAMILY", "Fast_dLLM_QwenConfig", "Fast_dLLM_QwenForCausalLM"]
