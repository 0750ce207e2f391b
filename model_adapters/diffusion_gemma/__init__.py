"""DiffusionGemma (google/diffusiongemma-26B-A4B-it): configuration, weight names, sampler settings."""

from dare_bench.model_adapters.diffusion_gemma.config import DiffusionGemmaConfig
from dare_bench.model_adapters.diffusion_gemma.family import FAMILY
from dare_bench.model_adapters.diffusion_gemma.network import DiffusionGemmaForBlockDiffusion

__all__ = ["FAMILY", "DiffusionGemmaConfig", "DiffusionGemmaForBlockDiffusion"]
