"""iLLaDA (GSAI-ML/iLLaDA-8B-Base, -Instruct)."""

from dare_bench.model_adapters.illada.family import FAMILY

__all__ = ["FAMILY"]
