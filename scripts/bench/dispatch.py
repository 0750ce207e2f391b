"""Count the operations that PyTorch dispatches in one denoising step, and how often the host waits for a result.

On a GPU each operation is a launch. A step of each bundled model is counted for one row and for 32 rows of different
length, without a cache and with one, for each attention backend. Counts are those of the steady step: the one with the
fewest operations, which enters no block and fills no cache.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import dare_bench
from dare_bench.model_adapters.backbone.attention import BACKENDS
from dare_bench.model_adapters.native import NativeModel
from dare_bench.types import Request

MODELS = ("tiny-llada", "tiny-dream", "tiny-sdar", "tiny-llada2-base")
CACHES = {"tiny-llada": ("none", "dual"), "tiny-dream": ("none", "dual")}
BLOCK = 4
WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "bincount", "_unique2")
"""Operations whose result, or its size, the host has to know before it goes on."""


@dataclass
class StepCounts:
    """The operations of one turn by place (``layers``, ``network``, ``sampler``), and the waits among them."""

    operations: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    names: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        return sum(self.operations.values())


class Counting(TorchDispatchMode):
    """Counts what is dispatched by turn and place. A turn begins with a call of the network."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.steps: list[StepCounts] = [StepCounts()]
        self.place = "sampler"
        self.handles = [
            network.register_forward_pre_hook(lambda *_: self._turn()),
            network.register_forward_hook(lambda *_: self._go("sampler")),
        ]
        for layer in network.at(network.arch.names.layers):
            self.handles.append(layer.register_forward_pre_hook(lambda *_: self._go("layers")))
            self.handles.append(layer.register_forward_hook(lambda *_: self._go("network")))

    def _turn(self) -> None:
        self.steps.append(StepCounts())
        self.place = "network"

    def _go(self, place: str) -> None:
        self.place = place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        self.steps[-1].operations[self.place] += 1
        self.steps[-1].names[name] += 1
        if name in WAITS or (name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1])):
            self.steps[-1].waits[name] += 1
        return func(*args, **(kwargs or {}))

    def read(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A method of tensors that copies to the host, and counts as a wait."""

        def method(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.steps[-1].waits[name] += 1
            return original(tensor, *args, **kwargs)

        return method


@contextmanager
def counting(network: Any) -> Iterator[Counting]:
    """Counts what happens inside, in one entry of ``steps`` for each call of the network."""
    mode = Counting(network)
    with ExitStack() as stack:
        for name in ("tolist", "cpu", "numpy"):
            stack.enter_context(patch.object(torch.Tensor, name, mode.read(getattr(torch.Tensor, name), name)))
        stack.enter_context(mode)
        try:
            yield mode
        finally:
            for handle in mode.handles:
                handle.remove()


def prompts(rows: int) -> list[list[int]]:
    """Prompts of different length: 8, 12, ... tokens, so that all of them end with a block."""
    return [[5 + (7 * i + j) % 200 for j in range(8 + BLOCK * i)] for i in range(rows)]


def steady_step(model: NativeModel, rows: int, decoding: dict[str, Any]) -> StepCounts:
    """The turn of fewest operations of decoding ``rows`` prompts together."""
    requests = [Request(str(i), "generate", ids, decoding=decoding) for i, ids in enumerate(prompts(rows))]
    with counting(model.network) as mode:
        list(model.generate(requests, max_rows=rows))
    return min(mode.steps[1:-1], key=lambda step: step.total)


def decodings(name: str) -> dict[str, dict[str, Any]]:
    """The decodings that are counted for a model, by the name of the cache."""
    if name in CACHES:
        length = {"gen_length": 4 * BLOCK, "steps": 4 * BLOCK}
        return {"none": {**length, "cache": "none"}, "dual": {**length, "cache": "dual", "block_length": 2 * BLOCK}}
    static = {"remasking_strategy": "low_confidence_static", "denoising_steps": BLOCK}
    one_by_one = {
        "gen_length": 2 * BLOCK,
        "block_length": BLOCK,
        **({"threshold": 1.0} if "llada2" in name else static),
    }
    return {"none": {**one_by_one, "cache": "none"}, "exact": {**one_by_one, "cache": "exact"}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--attention", nargs="*", default=list(BACKENDS))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--names", action="store_true", help="list the operations of a step")
    args = parser.parse_args()
    print(f"{'model':18} {'cache':6} {'attention':9} {'rows':>4} {'a layer':>8} {'outside':>8} {'total':>6} waits")
    for name in args.models:
        model = dare_bench.load(name, device="cpu").loaded
        for backend in args.attention:
            model.network.attention = BACKENDS[backend]
            for cache, decoding in decodings(name).items():
                for rows in (1, args.rows):
                    step = steady_step(model, rows, decoding)
                    layers = model.network.arch.layers
                    outside = step.total - step.operations["layers"]
                    waits = ", ".join(f"{n} {k}" for k, n in step.waits.items()) or "none"
                    counts = f"{step.operations['layers'] / layers:8.1f} {outside:8} {step.total:6}"
                    print(f"{name:18} {cache:6} {backend:9} {rows:4} {counts} {waits}")
                    if args.names:
                        print("   ", ", ".join(f"{k} {n}" for k, n in step.names.most_common()))


if __name__ == "__main__":
    main()
