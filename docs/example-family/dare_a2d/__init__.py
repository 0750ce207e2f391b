"""A model family by plugin. It is imported whenever dare-bench lists names, so it must not import torch."""


def register(registry):
    """Called once by dare-bench. A checkpoint is of this family if its config.json has this model_type and this first
    architecture; a pair that another family has is an error."""
    matches = [["a2d-qwen3", "A2DQwen3LMHeadModel"]]
    registry.add("family", "a2d_qwen3", "dare_a2d.family:FAMILY", origin=__name__, matches=matches)
