"""A checkpoint without its weights: from its folder, or by the config in its recipes. No torch at import."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from dare_bench import recipes
from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, suggestion
from dare_bench.loading import family_of, here
from dare_bench.registry import registry
from dare_bench.types import OpeningSettings


@dataclass(frozen=True, eq=False)
class Network:
    """The network of a ``model`` that was opened without its weights, with an architecture, which may be another.
    ``dtype``: of the published weights."""

    model: Any
    arch: Any
    dtype: str = "bfloat16"

    def shapes(self, layers: int, dtype: Any, adapter: Any = None) -> Any:
        """Its first layers without weights, on the meta device, with a new adapter if one is given."""
        arch, moe = self.arch, self.arch.moe
        if moe is not None:  # which experts a block may choose depends on its values, and hardly costs time
            moe = replace(moe, layers=moe.layers[:layers], pool=0)
        arch = replace(arch, layers=layers, moe=moe, by_layer=arch.by_layer[:layers])
        return self.model.family.shapes(type(self.model.network), arch, dtype, adapter)

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of layers that are traced: two, if the layers behind them are all alike. The largest use of memory
        grows evenly with the layers from three on."""
        first = self.arch.moe.layers.index(True) if self.arch.moe and any(self.arch.moe.layers) else 0
        few = first + 3, first + 4
        return (self.arch.layers,) if self.arch.by_layer or self.arch.layers <= few[1] else few


def find(model: str, family: str | None = None) -> Network:
    """A checkpoint of this machine, or one of a recipe. Nothing is downloaded. Raises CheckpointError: nothing is known
    of it, or of its network."""
    if (folder := here(model)) is not None:
        config = read_config(folder)
        opened = _opener(family_of(folder, family), model).open(folder, OpeningSettings(device="cpu"), weights=False)
        return Network(opened, opened.network.arch, str(config.get("torch_dtype") or config.get("dtype") or "bfloat16"))
    files = {file.model: file for file in map(recipes.load, registry().names("recipe"))}
    if model not in files:
        raise CheckpointError(
            f"nothing to estimate from: the checkpoint {model!r} is not on this machine, and no recipe has it"
            f"{suggestion(model, files)}; give its folder, or a hub id of dare-bench ls recipes"
        )
    return published(files[model].checkpoint, family)


@cache
def published(checkpoint: str, family: str | None = None) -> Network:
    """The checkpoint of a file of recipes by its config alone. No number of tokens or forwards depends on its special
    ids and context limit, which are made up. Raises CheckpointError."""
    file = recipes.load(checkpoint)
    opened = _opener(registry().get("family", family or file.family), file.model).described(file.config)
    return Network(opened, opened.network.arch)


def _opener(family: Any, model: str) -> Any:
    opener = family.load()
    if not hasattr(opener, "shapes"):
        raise CheckpointError(f"{model}: nothing to estimate from: the network of {opener.name} is not one of ours")
    return opener
