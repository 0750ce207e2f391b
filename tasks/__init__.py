"""Our own tasks (ordinary lm-eval task folders over small data that we generate by seed), recipes and suites."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if __name__ != "dare_bench.tasks":
    raise ImportError(f"import dare_bench.tasks, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """The folder is searched for lm-eval task files before lm-eval's own. A recipe file holds a checkpoint's published
    scores, a suite file several benchmarks; both are found by their file's name."""
    here = Path(__file__).parent
    registry.add("task_folder", "dare", str(here), origin=__name__)
    for kind in ("recipe", "suite"):
        for file in sorted((here / f"{kind}s").glob("*.yaml")):
            registry.add(kind, file.stem, str(file), origin=__name__)
