"""A family: its rules, and how its checkpoints are opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from dare_bench.model_adapters.adapters import wrap
from dare_bench.model_adapters.backbone import Arch, DiffusionNetwork
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.backbone.network import shapes_of
from dare_bench.model_adapters.family_rules import FamilyRules, SamplerFields, SpecialIds
from dare_bench.model_adapters.open_native import described, facts, open_native, planned
from dare_bench.protocols import AdapterSettings
from dare_bench.types import OpeningSettings

__all__ = ["Family", "SamplerFields", "SpecialIds"]


class Family(FamilyRules):
    """One family. Subclasses are stateless; see ``llada/family.py`` for a complete example."""

    def open(self, path: Path, settings: OpeningSettings, *, weights: bool = True) -> Any:
        """Open a folder in this family's published layout (see ``open_native.open_native``)."""
        return open_native(self, path, settings, weights=weights)

    def facts(self, path: Path) -> Iterator[tuple[str, str]]:
        """Its mask id and what names it, and its sampler (see ``open_native.facts``)."""
        return facts(self, path)

    def described(self, raw: dict[str, Any]) -> Any:
        """A network without weights by its config.json alone (see ``open_native.described``)."""
        return described(self, raw)

    def planned(self, path: Path, settings: OpeningSettings) -> Iterator[tuple[str, str]]:
        """Where its layers would go with ``device="auto"`` (see ``open_native.planned``)."""
        return planned(self, path, settings)

    def shapes(
        self, kind: type[DiffusionNetwork], arch: Arch, dtype: torch.dtype, adapter: AdapterSettings | None = None
    ) -> Any:
        """A network of the class ``kind`` with another architecture, without weights, with the attention that a GPU
        computes, and with a new LoRA adapter if one is given."""
        of_arch = type(kind.__name__, (kind,), {"arch_of": classmethod(lambda cls, config: arch)})
        network = shapes_of(of_arch, kind.config_class()).to(dtype)
        network.attention = BACKENDS["padded"]
        return network if adapter is None else wrap(network, adapter)
