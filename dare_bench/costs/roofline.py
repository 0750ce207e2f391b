"""The roofline of a machine: how near one denoising forward of a published shape comes to what the machine allows.

The floor of a forward is the larger of two times: its traced operations at the measured rate of a large matrix product,
and the bytes of the weights that it reads at the measured rate of a copy. Activations are not counted. Weights are
random, and the embedding is the LM head as well, which saves memory and changes neither number.

Shape letters: B rows, L positions of a row, N positions with logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dare_bench import recipes
from dare_bench.costs.checkpoint import Network, PublishedCheckpoint
from dare_bench.costs.trace import answering
from dare_bench.errors import MemoryLimitError, UsageError, unknown
from dare_bench.registry import registry

GOAL = {"cpu": 0.70, "cuda": 0.75}
"""Share of the floor that a forward of hidden size 2,048 or more should reach."""
PRODUCT = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the matrices whose product is timed."""
COPIED = {"cpu": 1 << 28, "cuda": 1 << 30}
"""Bytes of the copy that is timed, more than any cache has."""
BLOCK = 32
"""Positions of a row with logits."""
SECONDS = 1.0
"""Each timing is repeated for so long."""


@dataclass(frozen=True)
class Roofline:
    """``flop_per_s`` of a matrix product and ``bytes_per_s`` (read and written) of a copy, as measured; ``flop`` and
    ``read``: operations and bytes that the forward needs; ``seconds``: what it took."""

    flop_per_s: float
    bytes_per_s: float
    flop: float
    read: float
    seconds: float

    @property
    def floors(self) -> dict[str, float]:
        """The shortest times that the machine allows, in seconds, by what limits them, the longest first."""
        floors = {"matrix products": self.flop / self.flop_per_s, "reading weights": self.read / self.bytes_per_s}
        return dict(sorted(floors.items(), key=lambda item: -item[1]))

    @property
    def share(self) -> float:
        return max(self.floors.values()) / self.seconds


def published(like: str, layers: int) -> Network:
    """The first ``layers`` layers of the network that the recipes whose names begin with ``like`` describe.

    Raises:
        UsageError: no such recipe, recipes of several shapes, or more layers than the network has.
    """
    names = sorted(registry().names("recipe"))
    found = [like] if like in names else [name for name in names if name.startswith(like)]
    networks = [PublishedCheckpoint(recipes.load(name)).network for name in found]
    if not found:
        raise unknown("recipe", like, names)
    arch = networks[0].arch
    if any(network.arch != arch for network in networks):
        several = ", ".join(found)
        raise UsageError(f"--like {like} stands for checkpoints of several shapes: {several}; give one of these names")
    if not 1 <= layers <= arch.layers:
        raise UsageError(f"--layers {layers}: {like} has 1 to {arch.layers}")
    return replace(networks[0], arch=replace(arch, layers=layers, tied_head=True))


def random_network(network: Network, device: torch.device, dtype: torch.dtype) -> Any:
    """The network with random weights; raises MemoryLimitError."""
    built = network.shapes(network.arch.layers, dtype).eval()
    size = sum(tensor.nbytes for tensor in built.parameters())
    if device.type == "cuda" and size > (free := torch.cuda.mem_get_info(device)[0]):
        raise MemoryLimitError(f"{size / 1e9:.1f} GB of weights, {free / 1e9:.1f} GB are free; give fewer --layers")
    built.to_empty(device=device)
    with torch.no_grad():
        for tensor in built.state_dict().values():
            tensor.normal_(0.0, 0.02)
    return built


def best_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """The shortest of several runs, at least three after one to warm up, until the device is done with each."""
    times = list[float]()
    while len(times) < 4 or sum(times) < SECONDS:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


@torch.no_grad()
def measure(network: Network, rows: int, tokens: int, device: torch.device, dtype: torch.dtype) -> Roofline:
    """Time the machine and a forward of ``rows`` rows of random tokens; raises MemoryLimitError."""
    flop = answering(network, dtype, rows, tokens, tokens, BLOCK).flop
    built, moe, size, count = (
        random_network(network, device, dtype),
        network.arch.moe,
        PRODUCT[device.type],
        COPIED[device.type],
    )
    experts = sum(weight.numel() for weight in built.parameters() if weight.dim() == 3)
    unread = experts * (1 - moe.top_k / moe.experts) ** (rows * tokens) if moe else 0.0
    weights = sum(weight.numel() for weight in built.parameters() if weight.dim() > 1) - unread
    tokens_BL = torch.randint(network.arch.vocab, (rows, tokens), device=device)
    at_N = torch.arange(rows * tokens, device=device).view(rows, tokens)[:, -BLOCK:].reshape(-1)
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    source, product = torch.zeros(count, dtype=torch.uint8, device=device), torch.empty_like(left)
    target = torch.ones_like(source)

    def rates() -> tuple[float, float]:
        multiplied = best_seconds(lambda: torch.mm(left, right, out=product), device)
        return 2 * size**3 / multiplied, 2 * count / best_seconds(lambda: target.copy_(source), device)

    before = rates()
    seconds = best_seconds(lambda: built(tokens_BL, logits_at=at_N), device)
    # Other programs slow the machine for a while: the better of two.
    product_rate, copy_rate = map(max, before, rates())
    return Roofline(product_rate, copy_rate, flop, weights * dtype.itemsize, seconds)
