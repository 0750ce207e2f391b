"""A training method by plugin. It is imported whenever dare-bench lists names, so it must not import torch."""


def register(registry):
    """Called once by dare-bench (entry point ``dare_bench.plugins``); a name that is taken is an error."""
    about = "supervised fine-tuning with the focal loss"
    registry.add("trainer", "focal", "dare_focal.method:Focal", origin=__name__, about=about)
