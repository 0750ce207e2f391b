"""Networks and samplers of the model families, and the bundled checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if __name__ != "dare_bench.model_adapters":
    raise ImportError(f"import dare_bench.model_adapters, not {__name__}")

if TYPE_CHECKING:
    from dare_bench.registry import Registry

FAMILIES: tuple[tuple[str, str, list[list[str]]], ...] = (
    ("llada", "llada:FAMILY", [["llada", "LLaDAModelLM"]]),
    ("llada_moe", "llada_moe:FAMILY", [["llada", "LLaDAMoEModelLM"], ["lladamoe", "LLaDAMoEModelLM"]]),
    ("dream", "dream:FAMILY", [["Dream", "DreamModel"]]),
    ("sdar", "sdar:FAMILY", [["sdar", "SDARForCausalLM"], ["sdar_moe", "SDARMoeForCausalLM"]]),
    ("llada2", "llada2:FAMILY", [["llada2_moe", "LLaDA2MoeModelLM"]]),
    ("llada2.1", "llada2:FAMILY_21", []),
)
"""Name, place, and the (model_type, architecture) of published configs; LLaDA2.1's equals 2.0's, so it is asked for."""


def register(registry: Registry) -> None:
    """Families by (model_type, architecture) and bundled checkpoints by name. Imports no torch."""
    for name, target, matches in FAMILIES:
        registry.add("family", name, f"dare_bench.model_adapters.{target}", origin=__name__, matches=matches)
    for card in sorted((Path(__file__).parent / "tiny").glob("*/config.json")):
        registry.add("checkpoint", card.parent.name, str(card.parent), origin=__name__)
