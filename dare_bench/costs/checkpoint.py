"""A checkpoint without its weights: from its folder, or by the config in its recipes. No torch at import."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dare_bench import recipes
from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, suggestion
from dare_bench.loading import family_of, here
from dare_bench.recipe_schema import RecipeFile
from dare_bench.registry import registry
from dare_bench.types import OpeningSettings


@dataclass(frozen=True)
class Network:
    """A network of a ``family`` by its class and its architecture."""

    family: Any
    kind: Any
    arch: Any

    def shapes(self, layers: int, dtype: Any, adapter: Any = None) -> Any:
        """Its first layers without weights, on the meta device, with a new adapter if one is given."""
        arch, moe = self.arch, self.arch.moe
        if moe is not None:  # which experts a block may choose depends on its values, and hardly costs time
            moe = replace(moe, layers=moe.layers[:layers], pool=0)
        arch = replace(arch, layers=layers, moe=moe, by_layer=arch.by_layer[:layers])
        return self.family.shapes(self.kind, arch, dtype, adapter)

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of layers that are traced: two, if the layers behind them are all alike. The largest use of memory
        grows evenly with the layers from three on."""
        first = self.arch.moe.layers.index(True) if self.arch.moe and any(self.arch.moe.layers) else 0
        few = first + 3, first + 4
        return (self.arch.layers,) if self.arch.by_layer or self.arch.layers <= few[1] else few


def find(model: str, family: str | None = None) -> tuple[Any, Network, str]:
    """A checkpoint of this machine, opened without its weights, or one of a recipe; its network, and the dtype of its
    published weights. Nothing is downloaded. Raises CheckpointError: nothing is known of it, or of its network."""
    if (folder := here(model)) is not None:
        opener, config = family_of(folder, family).load(), read_config(folder)
        _check(opener, model)
        opened = opener.open(folder, OpeningSettings(device="cpu"), weights=False)
        return opened, _network_of(opened), str(config.get("torch_dtype") or config.get("dtype") or "bfloat16")
    files = {file.model: file for file in map(recipes.load, registry().names("recipe"))}
    if model not in files:
        raise CheckpointError(
            f"nothing to estimate from: the checkpoint {model!r} is not on this machine, and no recipe has it"
            f"{suggestion(model, files)}; give its folder, or a hub id of dare-bench ls recipes"
        )
    return *published(files[model], family), "bfloat16"


def published(file: RecipeFile, family: str | None = None) -> tuple[Any, Network]:
    """A recipe's checkpoint by its config alone, and its network. No number of tokens or forwards depends on its
    special ids and context limit, which are made up. Raises CheckpointError."""
    opener: Any = registry().get("family", family or file.family).load()
    _check(opener, file.model)
    opened = opener.described(file.config)
    return opened, _network_of(opened)


def _check(opener: Any, model: str) -> None:
    if not hasattr(opener, "shapes"):
        raise CheckpointError(f"{model}: nothing to estimate from: the network of {opener.name} is not one of ours")


def _network_of(opened: Any) -> Network:
    return Network(opened.family, type(opened.network), opened.network.arch)
