"""MDLM and BD3-LM (https://github.com/kuleshov-group/mdlm, https://github.com/kuleshov-group/bd3lms)."""

from dare_bench.model_adapters.mdlm.family import FAMILY

__all__ = ["FAMILY"]
