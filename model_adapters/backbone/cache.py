"""Keys and values of committed tokens, by slot, which the rows of a plan read and write.

A slot holds one token's keys and values of every layer, rotated to its position. Slot 0 is the null slot: padded
reads point to it, and it is never written. The sampler assigns the slots (``sampling/pages.py``); the network only
reads and writes.

Shape letters: S slots, K key heads, C head channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.arch import Arch


class KVStore:
    """Two tensors [S, K, C] a layer, grown on demand. Unwritten slots are zero, so masked reads stay finite."""

    def __init__(self, arch: Arch, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        layers = [arch.attention(i) for i in range(arch.layers)]
        self.shapes = [(layer.kv_heads, layer.head_dim) for layer in layers]
        self.keys = [self._zeros(slots, shape) for shape in self.shapes]
        self.values = [self._zeros(slots, shape) for shape in self.shapes]

    @property
    def slots(self) -> int:
        return len(self.keys[0])

    def _zeros(self, slots: int, shape: tuple[int, int]) -> Tensor:
        return torch.zeros((slots, *shape), device=self.device, dtype=self.dtype)

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` slots in all; what is stored stays."""
        more = slots - self.slots
        if more > 0:
            for i, shape in enumerate(self.shapes):
                self.keys[i] = torch.cat([self.keys[i], self._zeros(more, shape)])
                self.values[i] = torch.cat([self.values[i], self._zeros(more, shape)])

    def write(self, layer: int, at_n: Tensor, to_n: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> None:
        self.keys[layer][to_n] = k_TKC[at_n].to(self.dtype)
        self.values[layer][to_n] = v_TKC[at_n].to(self.dtype)
