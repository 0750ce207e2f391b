"""Count the bytes of keys and values that are copied in a step over cached windows, for each attention backend.

    python scripts/bench/cache_bytes.py [--rows 8] [--cached 1024] [--window 32] [--kv-heads 8] [--channels 128]

A backend that gathers copies everything that the rows read when the pack changes, and the keys and values of the window
in every step; one that reads the cache in place copies the window alone. What a layer copies is counted as PyTorch
dispatches it. The kernels of ``flex`` and ``varlen`` copy nothing and are left out, so no GPU is needed.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dare_bench.diffusion.plan import Cached, Plan
from dare_bench.model_adapters.backbone import flex
from dare_bench.model_adapters.backbone.attention import BACKENDS, Attention
from dare_bench.model_adapters.backbone.cache import KVStore
from dare_bench.model_adapters.backbone.flex import FlexAttention
from dare_bench.model_adapters.backbone.varlen import VarlenAttention

COPIES = ("cat", "clone", "copy_", "index", "index_copy_")


class CopyCounter(TorchDispatchMode):
    """Counts the bytes that are written as copies of tensors whose last dimensions are ``shape``."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape, self.bytes = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in COPIES and tuple(out.shape[-2:]) == self.shape:
            written: Tensor = args[-1] if name == "index_copy_" else out
            self.bytes += written.numel() * written.element_size()
        return out


class NoKernel:
    """Stands for a kernel, whose result is of no interest here."""

    def __init__(self, pages: bool = False) -> None:
        self.pages = pages

    def __call__(self, q: Tensor, *rest: Any, **options: Any) -> Tensor:
        return q


@torch.no_grad()
def copied(backend: Attention, args: argparse.Namespace) -> list[int]:
    """Bytes that a layer copies in the first step of a pack and in the next one."""
    shape = SimpleNamespace(kv_heads=args.kv_heads, head_dim=args.channels)
    arch: Any = SimpleNamespace(layers=1, attention=lambda layer: shape)
    counts = [max(1, args.cached - i * args.window) for i in range(args.rows)]
    store = KVStore(arch, 1 + sum(counts), torch.device("cpu"), torch.float32)
    none = torch.zeros(0, dtype=torch.long)
    slots = (1 + torch.arange(sum(counts))).split(counts)
    plan = Plan((args.window,) * args.rows, cached=Cached(store, slots, none, none, steady=True))
    q = torch.randn(plan.tokens, 2 * args.kv_heads, args.channels)
    k = torch.randn(plan.tokens, args.kv_heads, args.channels)
    v = k.clone()
    store.with_own(0, k, v)  # makes room for the pack behind the slots, once for all packs
    steps = []
    for _ in range(2):
        with CopyCounter((args.kv_heads, args.channels)) as mode:
            backend.attend(q, k, v, plan, None, 0)
        steps.append(mode.bytes)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 8), ("cached", 1024), ("window", 32), ("kv-heads", 8), ("channels", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    backends: dict[str, Attention] = {
        **BACKENDS,
        "flex": FlexAttention(),
        "varlen": VarlenAttention(NoKernel()),
        "varlen, FlashAttention 3": VarlenAttention(NoKernel(pages=True)),
    }
    print(f"{'MiB copied a layer (float32)':28} {'new pack':>9} {'steady':>9}")
    with patch.object(flex, "_kernel", lambda *_: NoKernel()):
        for name, backend in backends.items():
            first, steady = copied(backend, args)
            print(f"{name:28} {first / 2**20:9.2f} {steady / 2**20:9.2f}")


if __name__ == "__main__":
    main()
