"""Nemotron-Labs-Diffusion (nvidia/Nemotron-Labs-Diffusion-3B, -8B, -14B and their -Base)."""

from dare_bench.model_adapters.nemotron_diffusion.family import FAMILY

__all__ = ["FAMILY"]
