"""A checkpoint's network without weights, and its forward and backward traced: operations, bytes and memory of the code
itself.

It runs on fake tensors (shapes and dtypes alone, PyTorch's ``FakeTensorMode``), with the attention of a GPU. Layers are
alike, so a few are traced at two depths, and what a layer adds is counted for all others. Not counted: the CUDA
context, fragmentation, workspaces of kernels.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dare_bench import recipes
from dare_bench.checkpoint_files import read_config
from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.errors import CheckpointError, suggestion
from dare_bench.loading import family_of, here
from dare_bench.protocols import AdapterSettings
from dare_bench.registry import registry
from dare_bench.types import OpeningSettings, Request

aten = torch.ops.aten
_FLOP: dict[Any, Callable[..., Any]] = {
    # Rows [S, D], each times one of the matrices [E, D, M]; or [D, S] times [S, M], the gradient of these.
    aten._grouped_mm: lambda x, weight, *_, **__: 2 * x.numel() * weight.shape[-1],
    aten._scaled_dot_product_flash_attention_for_cpu: lambda *a, **_: sdpa_flop_count(*(x.shape for x in a[:3])),
    aten._scaled_dot_product_flash_attention_for_cpu_backward: lambda *a, **_: sdpa_backward_flop_count(
        *(x.shape for x in a[:4])
    ),
    **flop_registry,
}


@dataclass(frozen=True)
class Trace:
    """``flop``: operations of matrix products and attention; ``moved``: bytes that these read and write; ``peak``:
    largest number of bytes in use besides the weights; ``received``: bytes from other devices."""

    flop: float
    moved: float
    peak: float
    received: float = 0.0

    def scaled(self, times: float, received: float = 0.0, shared: int = 1) -> Trace:
        """So many times, each with so many bytes received; ``shared`` devices compute it together."""
        return Trace(self.flop * times / shared, self.moved * times / shared, self.peak / shared, received * times)


UTILIZATION = 0.4
"""Assumed share of the peaks. Matrix products reach 0.8 on an H200 (790 of 989 TFLOP/s measured); everything else,
small batches and launches reduce it."""


class Gpu(NamedTuple):
    """Dense bfloat16 peak in TFLOP/s, memory bandwidth in TB/s, memory in GB, GB/s of its links in one direction."""

    name: str
    tflops: float
    tb_per_s: float
    memory_gb: float
    link_gb_per_s: float

    def seconds(self, cost: Trace) -> float:
        """Time for bfloat16 operations, for bytes of memory or for those of the links, whichever is longest."""
        times = cost.flop / (self.tflops * 1e12), cost.moved / (self.tb_per_s * 1e12)
        return max(*times, cost.received / (self.link_gb_per_s * 1e9)) / UTILIZATION

    @property
    def text(self) -> str:
        peaks = f"{self.tflops:g} TFLOP/s dense bf16, memory {self.tb_per_s:g} TB/s, links {self.link_gb_per_s:g} GB/s"
        return f"{UTILIZATION:.0%} of the {self.name}'s data sheet ({peaks})"


GPUS = {
    "A100": Gpu("A100 80GB SXM", 312.0, 2.039, 80.0, 300.0),
    "H100": Gpu("H100 SXM", 989.4, 3.35, 80.0, 450.0),
    "H200": Gpu("H200 SXM", 989.4, 4.8, 141.0, 450.0),
}


class TraceMeter(TorchDispatchMode):
    """Counts what is computed inside it, and the bytes of all storages that it has seen and that are still in use."""

    def __init__(self) -> None:
        super().__init__()
        self.flop = self.moved = self.live = self.peak = 0.0
        self._seen: Any = weakref.WeakKeyDictionary()

    def _add(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, kind = kwargs or {}, func._overloadpacket
        if kind is aten._grouped_mm:  # whose shape function in PyTorch takes bfloat16 alone
            x, weight = args[:2]
            out = x.new_empty(*([len(args[2])] if x.dim() == weight.dim() else []), x.shape[0], weight.shape[-1])
        else:
            out = func(*args, **kwargs)
        if kind in _FLOP:
            self.flop += _FLOP[kind](*args, **kwargs, out_val=out)
            self.moved += sum(x.nbytes for x in tree_leaves((args, kwargs, out)) if isinstance(x, Tensor))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and (storage := tensor.untyped_storage()) not in self._seen:
                self._seen[storage] = None
                self._add(storage.nbytes())
                weakref.finalize(storage, self._add, -storage.nbytes())
        return out


@cache
def find(model: str, family: str | None = None) -> Any:
    """The model of a checkpoint of this machine without weights, with its dtype; or of one that recipes describe, with
    special ids and a context limit that are made up. Raises CheckpointError: nothing is known of its network."""
    folder, files = here(model), {file.model: file for file in map(recipes.load, registry().names("recipe"))}
    if folder is None and model not in files:
        raise CheckpointError(
            f"nothing to estimate from: the checkpoint {model!r} is not on this machine, and no recipe has it"
            f"{suggestion(model, files)}; give its folder, or a hub id of dare-bench ls recipes"
        )
    entry = registry().get("family", family or files[model].family) if folder is None else family_of(folder, family)
    opener: Any = entry.load()
    if not hasattr(opener, "shapes"):
        raise CheckpointError(f"{model}: nothing to estimate from: the network of {opener.name} is not one of ours")
    if folder is None:
        return opener.described(files[model].config)
    config = read_config(folder)
    dtype = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    return opener.open(folder, OpeningSettings(device="cpu", dtype=dtype), weights=False)


def shapes(model: Any, layers: int, dtype: torch.dtype, adapter: AdapterSettings | None = None) -> Any:
    """The first layers of a model's network without weights, with a new adapter if one is given."""
    arch = model.network.arch
    if (moe := arch.moe) is not None:  # which experts a block may choose depends on its values, and hardly costs time
        moe = replace(moe, layers=moe.layers[:layers], pool=0)
    arch = replace(arch, layers=layers, moe=moe, by_layer=arch.by_layer[:layers])
    return model.family.shapes(type(model.network), arch, dtype, adapter)


@cache
def parameters(model: Any, adapter: AdapterSettings | None) -> tuple[int, int]:
    """Numbers of parameters: of the checkpoint, and those that are trained."""
    every = list(shapes(model, model.network.arch.layers, torch.bfloat16, adapter).parameters())
    trained = sum(weight.numel() for weight in every if weight.requires_grad)
    return sum(weight.numel() for weight in every) - (trained if adapter else 0), trained


def depths(arch: Any) -> tuple[int, int]:
    """Numbers of layers that are traced: two, if the layers behind them are all alike. The largest use of memory grows
    evenly with the layers from three on."""
    few = 3 + (arch.moe.layers.index(True) if arch.moe and any(arch.moe.layers) else 0)
    return (arch.layers, arch.layers) if arch.by_layer or arch.layers <= few + 1 else (few, few + 1)


@cache
def traced(
    model: Any, dtype: torch.dtype, plan: Plan, scored: int, *, cached: int = 0, losses: bool = False,
    backward: bool = False, adapter: AdapterSettings | None = None, autocast: bool = False,
    checkpointing: bool = False, scattered: bool = False,
) -> Trace:  # fmt: skip
    """A forward of the rows of ``plan`` with logits of ``scored`` tokens: of a sampler, after ``cached`` tokens of each
    row, or of a training (``losses``), with its ``backward`` or without. ``scattered``: gradients leave the device as
    soon as they are computed (FSDP)."""

    def at(layers: int) -> tuple[float, float, float]:
        network = shapes(model, layers, dtype, adapter)
        with FakeTensorMode(allow_non_fake_inputs=True), TraceMeter() as meter:
            network.to_empty(device="cpu").train(losses)
            for module in network.modules():
                if hasattr(module, "gradient_checkpointing"):
                    module.gradient_checkpointing = checkpointing
            for weight in network.parameters() if scattered else ():
                if weight.requires_grad:
                    weight.register_post_accumulate_grad_hook(lambda w: setattr(w, "grad", None))
            before, ids = meter.live, torch.zeros(plan.tokens, dtype=torch.long)
            where = _reading(network.arch, plan, cached, dtype) if cached else replace(plan)
            which = ids[:1].expand(scored)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(backward):
                result = network(ids, ids, where, logits_at=which, targets=which if losses else None)
            if backward:
                result.nll.sum().backward()
        return meter.flop, meter.moved, meter.peak - before

    (few, more), layers = depths(model.network.arch), model.network.arch.layers
    return Trace(*(a + (layers - few) * (b - a) for a, b in zip(at(few), at(more), strict=True)))


def _reading(arch: Any, plan: Plan, tokens: int, dtype: torch.dtype) -> Plan:
    """The plan behind so many cached tokens of each row, as in all forwards of a block."""
    rows, of = len(plan.lengths), [arch.attention(i) for i in range(arch.layers)]
    keys, values = ([torch.empty(rows * tokens, a.kv_heads, a.head_dim, dtype=dtype) for a in of] for _ in "kv")
    slots = tuple(torch.zeros(tokens, dtype=torch.long) for _ in range(rows))
    store: Any = SimpleNamespace(keys=keys, values=values)
    return replace(plan, starts=(tokens,) * rows, cached=Cached(store, slots, slots[0][:0], slots[0][:0], steady=True))


def answering(model: Any, dtype: torch.dtype, rows: int, request: Request, autocast: bool = False) -> tuple[int, Trace]:
    """The number of forwards that a request of token ids takes at most, and their mean, each of ``rows`` such rows."""
    prompt, every = len(request.prompt), model.forwards(request)
    block = len(request.target or ())  # whose logits are needed
    kinds = [(every, prompt + block, prompt + block)]
    if request.kind == "generate":
        sampler = model.sampler(request)[1]
        block, blocks, total = sampler.block_length, sampler.blocks(prompt), sampler.canvas_length(prompt)
        cache, kinds = sampler.attention.cache, [(every, total, total)]
        if sampler.attention.causal:  # a finished block is committed in the first forward of the next one
            middle = ceil(prompt + (blocks + 1) / 2 * block)
            kinds = [(every, block, middle), (1, prompt, prompt)] if cache.used else [(every, middle, middle)]
        elif cache.used:
            rest = block if cache.block_alone else ceil(total - prompt - (blocks - 1) / 2 * block)
            kinds = [(blocks, total, total), (every - blocks, rest, total)]
    most, flop, moved, peak = 0, 0.0, 0.0, 0.0
    for count, tokens, context in kinds:
        plan = Plan((tokens,) * rows, model.network.arch.block_length if tokens == context else None)
        one = traced(model, dtype, plan, rows * min(block, tokens), cached=context - tokens, autocast=autocast)
        most, flop, moved = most + count, flop + count * one.flop, moved + count * one.moved
        peak = max(peak, one.peak)
    return most, Trace(flop / most, moved / most, peak)
