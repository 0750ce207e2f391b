"""A checkpoint without its weights: from its folder, or by the facts in its recipes. No torch at import."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dare_bench import recipes
from dare_bench.checkpoint_files import read_config
from dare_bench.errors import CheckpointError, suggestion
from dare_bench.loading import family_of, here
from dare_bench.recipe_schema import RecipeFile
from dare_bench.registry import registry
from dare_bench.types import Decoding, ModelSpec, OpeningSettings, Request


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


class PublishedCheckpoint:
    """A checkpoint that is not on this machine: what samplers and trainings ask of an opened one. No number of tokens
    or forwards depends on its special ids and context limit, which are made up."""

    def __init__(self, file: RecipeFile, family: str | None = None) -> None:
        self.family: Any = registry().get("family", family or file.family).load()
        self.facts = facts = file.facts
        self.spec = ModelSpec(
            family=self.family.name, mask_id=2, eos_ids=(1,), eot_id=None, pad_id=None, vocab_size=facts.vocab or 2**31,
            context_limit=2**31, attention=facts.attention, block_length=facts.block_length, sft=self.family.sft,
            predicts=self.family.predicts, heads=facts.heads or 0, kv_heads=facts.kv_heads or facts.heads or 0,
        )  # fmt: skip

    def resolve(self, decoding: Mapping[str, Any]) -> Decoding:
        """All decoding values for the requested ones; raises DecodingError."""
        resolved: Decoding = self.family.resolve(decoding, self.spec)
        return resolved

    def sampler(self, request: Request) -> tuple[ModelSpec, Any]:
        """The sampler of a request; raises DecodingError."""
        return self.spec, self.family.sampler(self.resolve(request.decoding), self.spec)

    def forwards(self, request: Request) -> int:
        """Upper bound of the forwards of a request whose prompt is given as token ids; raises DecodingError."""
        return int(self.sampler(request)[1].most_forwards(len(request.prompt)))

    @property
    def network(self) -> Network:
        """The family's network with the sizes of the facts."""
        net, base = self.facts, self.family.network
        variants = {kind: kind.arch_of(kind.config_class()) for kind in (base, *base.__subclasses__())}
        kind, arch = next(item for item in variants.items() if (item[1].moe is None) == (net.experts is None))
        moe, experts, heads = arch.moe, net.experts, net.heads or arch.heads
        if moe is not None and experts is not None:
            routed = tuple(layer >= experts.dense_layers for layer in range(net.layers))
            widths = {"width": experts.ff, "shared_width": experts.shared_ff}
            moe = replace(moe, layers=routed, experts=experts.count, top_k=experts.active, **widths)
        channels = net.head_dim or net.d_model // heads
        arch = replace(
            arch, moe=moe, layers=net.layers, width=net.d_model, heads=heads, kv_heads=net.kv_heads or heads,
            head_dim=channels, rotary_dim=arch.rotary_dim and min(arch.rotary_dim, channels),
            ff_width=net.ff or arch.ff_width, vocab=net.vocab or arch.vocab, block_length=net.block_length,
        )  # fmt: skip
        return Network(self.family, kind, arch)


def find(model: str, family: str | None = None) -> tuple[Any, Network, str]:
    """A checkpoint of this machine, opened without its weights, or one of a recipe; its network, and the dtype of its
    published weights. Nothing is downloaded. Raises CheckpointError: nothing is known of it, or of its network."""
    if (folder := here(model)) is not None:
        entry, config = family_of(folder, family), read_config(folder)
        opener = entry.load()
        if not hasattr(opener, "shapes"):
            raise CheckpointError(f"{model}: nothing to estimate from: the network of {entry.name} is not one of ours")
        opened = opener.open(folder, OpeningSettings(device="cpu"), weights=False)
        dtype = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
        return opened, Network(opener, type(opened.network), opened.network.arch), str(dtype)
    files = {file.model: file for file in map(recipes.load, registry().names("recipe"))}
    if model not in files:
        raise CheckpointError(
            f"nothing to estimate from: the checkpoint {model!r} is not on this machine, and no recipe has it"
            f"{suggestion(model, files)}; give its folder, or a hub id of dare-bench ls recipes"
        )
    published = PublishedCheckpoint(files[model], family)
    return published, published.network, "bfloat16"
