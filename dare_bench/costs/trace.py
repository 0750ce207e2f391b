"""A network's forward and backward traced without weights: operations, bytes and memory of the code itself.

It runs on fake tensors (shapes and dtypes alone, PyTorch's ``FakeTensorMode``), with the attention of a GPU. Layers are
alike, so a few are traced at two depths, and what a layer adds is counted for all others. Not counted: the CUDA
context, fragmentation, workspaces of kernels.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from dare_bench.costs.checkpoint import Network
from dare_bench.diffusion.forward import Inputs
from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.protocols import AdapterSettings

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
    largest number of bytes in use besides the weights."""

    flop: float
    moved: float
    peak: float


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
def parameters(network: Network, adapter: AdapterSettings | None) -> tuple[float, float]:
    """Numbers of parameters: of the checkpoint, and those that are trained."""
    every = list(network.shapes(network.arch.layers, torch.bfloat16, adapter).parameters())
    trained = sum(weight.numel() for weight in every if weight.requires_grad)
    return sum(weight.numel() for weight in every) - (trained if adapter else 0), trained


def traced(
    network: Network,
    dtype: torch.dtype,
    adapter: AdapterSettings | None,
    run: Callable[[Any], Callable[[], Any] | None],
) -> Trace:
    """Trace ``run`` of the network at its depths, which are one layer apart, or one and the same. Where it returns what
    is done again and again, one such time is counted."""

    def at(layers: int) -> tuple[float, ...]:
        shapes = network.shapes(layers, dtype, adapter)
        with FakeTensorMode(allow_non_fake_inputs=True), TraceMeter() as meter:
            shapes.to_empty(device="cpu")
            before = meter.live
            if (again := run(shapes)) is not None:
                meter.flop = meter.moved = 0.0
                again()
        return meter.flop, meter.moved, meter.peak - before

    few, more = network.depths[0], network.depths[-1]
    return Trace(*(a + (network.arch.layers - few) * (b - a) for a, b in zip(at(few), at(more), strict=True)))


@cache
def answering(
    network: Network, dtype: torch.dtype, rows: int, tokens: int, context: int, logits: int, autocast: bool = False
) -> Trace:
    """A forward of a sampler: ``rows`` rows of ``tokens`` tokens which attend to themselves and to what is cached,
    ``context`` in all, with logits at ``logits`` positions of each."""

    def run(shapes: Any) -> Callable[[], Any]:
        cached, starts, behind = None, None, context - tokens
        if behind > 0:
            of = [shapes.arch.attention(i) for i in range(shapes.arch.layers)]
            keys, values = ([torch.empty(rows * behind, a.kv_heads, a.head_dim, dtype=dtype) for a in of] for _ in "kv")
            slots = tuple(torch.zeros(behind, dtype=torch.long) for _ in range(rows))
            store: Any = SimpleNamespace(keys=keys, values=values)
            cached = Cached(store, slots, slots[0][:0], slots[0][:0], steady=True)  # as in all forwards of a block
            starts = (behind,) * rows
        plan = Plan(
            (tokens,) * rows, shapes.arch.block_length if cached is None else None, starts=starts, cached=cached
        )
        ids = torch.zeros(rows * tokens, dtype=torch.long)

        @torch.no_grad()
        def forward() -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                shapes(input_ids=ids, positions=ids, plan=plan, logits_at=ids[:1].expand(rows * min(logits, tokens)))

        shapes.eval()
        forward()
        return forward

    return traced(network, dtype, None, run)


Given = tuple[tuple[str, Any], ...]
"""What a network reads, by name: plain values, and shape and dtype of tensors."""


def shapes_in(inputs: Inputs) -> Given:
    """What a trace of ``inputs`` depends on."""
    values = inputs.arguments().items()
    return tuple((name, (v.shape, v.dtype) if isinstance(v, Tensor) else v) for name, v in values)


@cache
def training(
    network: Network,
    dtype: torch.dtype,
    adapter: AdapterSettings | None,
    given: Given,
    *,
    autocast: bool,
    backward: bool,
    checkpointing: bool = False,
    scattered: bool = False,
) -> Trace:
    """A forward of a training, with its backward or without. ``scattered``: gradients leave the device as soon as they
    are computed (FSDP)."""

    def run(shapes: Any) -> None:
        shapes.train()
        for module in shapes.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = checkpointing
        for weight in shapes.parameters() if scattered else ():
            if weight.requires_grad:
                weight.register_post_accumulate_grad_hook(lambda w: setattr(w, "grad", None))
        values: dict[str, Any] = {k: torch.empty(v[0], dtype=v[1]) if isinstance(v, tuple) else v for k, v in given}
        values["plan"] = replace(values["plan"])  # with nothing computed yet
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.set_grad_enabled(backward):
            losses = shapes(**values).nll
        if backward:
            losses.sum().backward()

    return traced(network, dtype, adapter, run)
