"""Autoregressive models: every causal language model that transformers itself knows, for baselines."""

from dare_bench.model_adapters.causal.family import FAMILY

__all__ = ["FAMILY"]
