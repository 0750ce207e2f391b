"""GPUs by their vendor's data sheets. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from dare_bench.errors import unknown

UTILIZATION = 0.4
"""Assumed share of the peaks. Matrix products reach 0.8 on an H200 (790 of 989 TFLOP/s measured); everything else,
small batches and launches reduce it."""


@dataclass(frozen=True)
class Gpu:
    """Dense bfloat16 peak in TFLOP/s, memory bandwidth in TB/s, memory in GB, GB/s of its links in one direction."""

    name: str
    tflops: float
    tb_per_s: float
    memory_gb: float
    link_gb_per_s: float

    def seconds(self, operations: float, moved: float, received: float = 0.0) -> float:
        """Time for bfloat16 operations while bytes are ``moved`` to and from memory and ``received`` over the links."""
        times = operations / (self.tflops * 1e12), moved / (self.tb_per_s * 1e12), received / (self.link_gb_per_s * 1e9)
        return max(times) / UTILIZATION

    @property
    def text(self) -> str:
        peaks = f"{self.tflops:g} TFLOP/s dense bf16, memory {self.tb_per_s:g} TB/s, links {self.link_gb_per_s:g} GB/s"
        return f"{UTILIZATION:.0%} of the {self.name}'s data sheet ({peaks})"


GPUS = {
    "A100": Gpu("A100 80GB SXM", 312.0, 2.039, 80.0, 300.0),
    "H100": Gpu("H100 SXM", 989.4, 3.35, 80.0, 450.0),
    "H200": Gpu("H200 SXM", 989.4, 4.8, 141.0, 450.0),
}


def gpu_named(name: str) -> Gpu:
    """A GPU of the table; raises UnknownNameError."""
    if name not in GPUS:
        raise unknown("GPU", name, GPUS)
    return GPUS[name]
