"""A2D (dllm-hub/Qwen3-0.6B-diffusion-*, Qwen2.5-Coder-0.5B-Instruct-diffusion-*): autoregressive models adapted to
diffusion, with two samplers."""

from dare_bench.model_adapters.a2d.family import BD3LM, MDLM

__all__ = ["BD3LM", "MDLM"]
