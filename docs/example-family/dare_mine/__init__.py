"""A model family by plugin. It is imported whenever dare-bench lists names, so it must not import torch."""


def register(registry):
    """Called once by dare-bench. A checkpoint is of this family if its config.json has this model_type and this first
    architecture; a pair that another family has is an error."""
    matches = [["masked-qwen3", "MaskedQwen3LMHeadModel"]]
    registry.add("family", "masked_qwen3", "dare_mine.family:FAMILY", origin=__name__, matches=matches)
