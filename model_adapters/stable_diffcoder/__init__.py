"""Stable-DiffCoder (https://github.com/ByteDance-Seed/Stable-DiffCoder)."""

from dare_bench.model_adapters.stable_diffcoder.family import FAMILY

__all__ = ["FAMILY"]
