"""Harnesses that own prompts and scoring: their tasks in, their scores out; nothing else in the program knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """Harness names for ``--harness``."""
    registry.add("harness", "lm-eval", "dare_bench.harness.lm_eval.source:LmEvalSource", origin=__name__)
    source = "dare_bench.harness.opencompass.source:OpenCompassSource"
    registry.add("harness", "opencompass", source, origin=__name__)
