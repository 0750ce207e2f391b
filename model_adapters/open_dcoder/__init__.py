"""Open-dCoder (https://github.com/pengzhangzhi/Open-dLLM)."""

from dare_bench.model_adapters.open_dcoder.family import FAMILY

__all__ = ["FAMILY"]
