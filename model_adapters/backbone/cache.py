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
    """Two tensors [S, K, C] a layer, from its first write on the layer's device; grown on demand. Unwritten slots are
    zero, so masked reads stay finite."""

    def __init__(self, arch: Arch, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.shape, self.device, self.dtype = (arch.kv_heads, arch.head_dim), device, dtype
        self.keys = [self._zeros(slots) for _ in range(arch.layers)]
        self.values = [self._zeros(slots) for _ in range(arch.layers)]

    @property
    def slots(self) -> int:
        return len(self.keys[0])

    def _zeros(self, slots: int, device: torch.device | None = None) -> Tensor:
        return torch.zeros((slots, *self.shape), device=device or self.device, dtype=self.dtype)

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` slots in all; what is stored stays."""
        more = slots - self.slots
        if more > 0:
            for i in range(len(self.keys)):
                room = self._zeros(more, self.keys[i].device)
                self.keys[i] = torch.cat([self.keys[i], room])
                self.values[i] = torch.cat([self.values[i], room])

    def write(self, layer: int, at_n: Tensor, to_n: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> None:
        device = k_TKC.device
        if self.keys[layer].device != device:
            self.keys[layer], self.values[layer] = self.keys[layer].to(device), self.values[layer].to(device)
        at_n, to_n = at_n.to(device), to_n.to(device)
        self.keys[layer][to_n] = k_TKC[at_n].to(self.dtype)
        self.values[layer][to_n] = v_TKC[at_n].to(self.dtype)
