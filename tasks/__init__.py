"""Our own tasks: ordinary lm-eval task folders over small data that we generate by seed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if __name__ != "dare_bench.tasks":
    raise ImportError(f"import dare_bench.tasks, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """The folder is searched for lm-eval task files before lm-eval's own."""
    registry.add("task_folder", "dare", str(Path(__file__).parent), origin=__name__)
