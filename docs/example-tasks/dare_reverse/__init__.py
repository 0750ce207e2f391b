"""A task folder by plugin, with what else belongs to a task. It is imported whenever dare-bench lists names, so it must
not import torch or lm-eval."""

from pathlib import Path


def register(registry):
    """Called once by dare-bench. Every task file below the folder is found by ``--tasks``."""
    here = Path(__file__).parent
    registry.add("task_folder", "dare-reverse", str(here / "tasks"), origin=__name__)
    registry.add("suite", "digits", str(here / "digits.yaml"), origin=__name__)
    registry.add("training_data", "reverse", "dare_reverse.training:DATA", origin=__name__)
    about = "the task's exact_match; option format_weight: partial credit for the right digits in another order"
    registry.add("reward", "reverse", "dare_reverse.training:REWARD", origin=__name__, about=about, checks_rows=True)
