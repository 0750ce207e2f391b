"""The roofline of a machine: how near one denoising forward of a published shape comes to what the machine allows.

The floor of a forward is the larger of two times: the operations that it needs at the measured rate of a large matrix
product, and the bytes of the weights that it reads at the measured rate of a copy. Activations are not counted. Weights
are random, and the embedding is the LM head as well, which saves memory and changes neither number.

Shape letters: B rows, L positions of a row, N positions with logits.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from dare_bench import recipes
from dare_bench.costs.network import attention_widths, network_shape
from dare_bench.costs.sizes import Dimensions, PublishedModel
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
class Peaks:
    """Measured operations per second of a matrix product, and bytes per second (read and written) of a copy."""

    flop_per_s: float
    bytes_per_s: float


@dataclass(frozen=True)
class Workload:
    """A forward of ``rows`` rows of ``tokens`` tokens each, with logits at the last block of every row."""

    rows: int
    tokens: int

    @property
    def logits(self) -> int:
        """Positions of a row with logits."""
        return min(BLOCK, self.tokens)


@dataclass(frozen=True)
class Roofline:
    """``flop`` and ``read``: operations and bytes that the forward needs; ``seconds``: what it took."""

    peaks: Peaks
    flop: float
    read: float
    seconds: float

    @property
    def floor(self) -> float:
        """The shortest time that the machine allows, in seconds."""
        return max(self.flop / self.peaks.flop_per_s, self.read / self.peaks.bytes_per_s)

    @property
    def share(self) -> float:
        return self.floor / self.seconds

    @property
    def limit(self) -> str:
        """What determines the floor."""
        by_products = self.flop / self.peaks.flop_per_s >= self.read / self.peaks.bytes_per_s
        return "matrix products" if by_products else "reading weights"


def published(like: str, layers: int) -> PublishedModel:
    """The first ``layers`` layers of the network that the recipes whose names begin with ``like`` describe.

    Raises:
        UsageError: no such recipe, recipes of several shapes, or more layers than the network has.
    """
    names = sorted(registry().names("recipe"))
    models = [
        PublishedModel(recipes.load(name)) for name in ([like] if like in names else names) if name.startswith(like)
    ]
    if not models:
        raise unknown("recipe", like, names)
    shapes = [model.dimensions.model_copy(update={"tokens_per_forward": None}) for model in models]
    if any(shape != shapes[0] for shape in shapes):
        several = ", ".join(name for name in names if name.startswith(like))
        raise UsageError(f"--like {like} stands for checkpoints of several shapes: {several}; give one of these names")
    if not 1 <= layers <= shapes[0].layers:
        raise UsageError(f"--layers {layers}: {like} has 1 to {shapes[0].layers}")
    models[0].dimensions = shapes[0].model_copy(update={"layers": layers})
    return models[0]


def needed(net: Dimensions, work: Workload) -> tuple[float, float]:
    """Operations that a forward needs, and the number of weights that it reads.

    In the last layer, all tokens need keys and values, and only those with logits anything else.
    """
    shape, before = network_shape(net, []), network_shape(net.model_copy(update={"layers": net.layers - 1}), [])
    grid = net.block_length or work.tokens
    contexts = [min(work.tokens, (column // grid + 1) * grid) for column in range(work.tokens)]
    keys = 2 * net.d_model * attention_widths(net)[1]
    flop = 2 * before.body * work.tokens + before.attention * sum(contexts) + 2 * keys * work.tokens
    flop += 2 * (shape.body - before.body - keys + shape.head) * work.logits
    flop += (shape.attention - before.attention) * sum(contexts[-work.logits :])
    touched = 1 - (1 - shape.active) ** (work.rows * work.tokens)
    return work.rows * flop, shape.weights + touched * shape.experts


def random_network(model: PublishedModel, device: torch.device, dtype: torch.dtype) -> Any:
    """The family's network in the shape of ``model.dimensions``, with random weights; raises MemoryLimitError."""
    net, base = model.dimensions, model.family.network
    variants = {kind: kind.arch_of(kind.config_class()) for kind in (base, *base.__subclasses__())}
    base, published = next(item for item in variants.items() if (item[1].moe is None) == (net.experts is None))
    moe = published.moe
    if moe is not None and net.experts is not None:
        e = net.experts
        routed = tuple(layer >= e.dense_layers for layer in range(net.layers))
        moe = replace(moe, layers=routed, experts=e.count, top_k=e.active, width=e.ff, shared_width=e.shared_ff)
    heads = net.heads or published.heads
    channels = net.head_dim or net.d_model // heads
    rotated = published.rotary_dim and min(published.rotary_dim, channels)
    arch = replace(
        published, moe=moe, layers=net.layers, width=net.d_model, heads=heads, kv_heads=net.kv_heads or heads,
        head_dim=channels, rotary_dim=rotated, ff_width=net.ff or published.ff_width,
        vocab=net.vocab or published.vocab, block_length=net.block_length, tied_head=True,
    )  # fmt: skip

    shaped: Any = type("Shaped", (base,), {"arch_of": classmethod(lambda cls, config: arch)})
    with torch.device("meta"):
        network = shaped(base.config_class()).to(dtype).eval()
    weights = sum(tensor.nbytes for tensor in network.parameters())
    if device.type == "cuda" and weights > (free := torch.cuda.mem_get_info(device)[0]):
        raise MemoryLimitError(f"{weights / 1e9:.1f} GB of weights, {free / 1e9:.1f} GB are free; give fewer --layers")
    network.to_empty(device=device)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.02)
        for buffer in network.buffers():
            buffer.zero_()
    return network


def best_seconds(run: Callable[[], Any], device: torch.device) -> float:
    """The shortest of several runs, at least three after one to warm up, until the device is done with each."""

    def timed() -> float:
        start = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    timed()
    times = [timed() for _ in range(3)]
    while sum(times) < SECONDS:
        times.append(timed())
    return min(times)


@torch.no_grad()
def measure_peaks(device: torch.device, dtype: torch.dtype) -> Peaks:
    """Of a square matrix product, and of a copy inside the device's memory."""
    size, count = PRODUCT[device.type], COPIED[device.type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    product = best_seconds(lambda: torch.mm(left, right, out=out), device)
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)
    copy = best_seconds(lambda: target.copy_(source), device)
    return Peaks(2 * size**3 / product, 2 * count / copy)


@torch.no_grad()
def measure(model: PublishedModel, work: Workload, device: torch.device, dtype: torch.dtype) -> Roofline:
    """Time the machine and a forward of random tokens; raises MemoryLimitError."""
    network = random_network(model, device, dtype)
    tokens_BL = torch.randint(model.dimensions.vocab or 2, (work.rows, work.tokens), device=device)
    at_BN = torch.arange(work.rows * work.tokens, device=device).view(work.rows, work.tokens)[:, -work.logits :]
    at = at_BN.reshape(-1)
    before = measure_peaks(device, dtype)
    seconds = best_seconds(lambda: network(tokens_BL, logits_at=at), device)
    after = measure_peaks(device, dtype)  # other programs slow the machine for a while: the better of two
    peaks = Peaks(max(before.flop_per_s, after.flop_per_s), max(before.bytes_per_s, after.bytes_per_s))
    flop, weights = needed(model.dimensions, work)
    return Roofline(peaks, flop, weights * dtype.itemsize, seconds)
