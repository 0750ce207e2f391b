"""Networks and samplers of the model families, and the bundled checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if __name__ != "dare_bench.model_adapters":
    raise ImportError(f"import dare_bench.model_adapters, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry


def register(registry: Registry) -> None:
    """Families by (model_type, architecture) and bundled checkpoints by name. Imports no torch."""
    registry.add(
        "family",
        "llada",
        "dare_bench.model_adapters.llada:FAMILY",
        origin=__name__,
        matches=[["llada", "LLaDAModelLM"]],
    )
    for card in sorted((Path(__file__).parent / "tiny").glob("*/config.json")):
        registry.add("checkpoint", card.parent.name, str(card.parent), origin=__name__)
