"""Keys and values of committed tokens, by slot, which the rows of a plan read and write.

A slot holds one token's keys and values of every layer, rotated to its position. Slot 0 is the null slot: padded
reads point to it, and it is never written. The sampler assigns the slots (``backbone/pages.py``); the network only
reads and writes.

Shape letters: S slots, T packed tokens, K key heads, C head channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dare_bench.model_adapters.backbone.arch import Arch


class KVStore:
    """Two tensors [S, K, C] a layer, from its first use on the layer's device; grown on demand. Unwritten slots are
    zero, so masked reads stay finite."""

    def __init__(self, arch: Arch, slots: int, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        layers = [arch.attention(i) for i in range(arch.layers)]
        self.shapes = [(layer.kv_heads, layer.head_dim) for layer in layers]
        self.keys = [self._zeros(slots, i, device) for i in range(arch.layers)]
        self.values = [self._zeros(slots, i, device) for i in range(arch.layers)]
        self._parts = ((self.keys, list(self.keys)), (self.values, list(self.values)))
        """Of keys and of values: the slots by layer, and the tensors that they are the beginning of."""

    @property
    def slots(self) -> int:
        return len(self.keys[0])

    def _zeros(self, slots: int, layer: int, device: torch.device) -> Tensor:
        return torch.zeros((slots, *self.shapes[layer]), device=device, dtype=self.dtype)

    def grow(self, slots: int) -> None:
        """Make room for ``slots`` slots in all; what is stored stays."""
        for stored, whole in self._parts:
            for layer, tensor in enumerate(stored):
                if len(tensor) < slots:
                    self._enlarge(stored, whole, layer, slots, len(whole[layer]) - len(tensor))

    def _enlarge(self, stored: list[Tensor], whole: list[Tensor], layer: int, slots: int, behind: int) -> None:
        """Make room for ``slots`` slots and for ``behind`` tokens behind them."""
        larger = self._zeros(slots + behind, layer, stored[layer].device)
        larger[: len(stored[layer])] = stored[layer]
        stored[layer], whole[layer] = larger[:slots], larger

    def _move(self, layer: int, device: torch.device) -> None:
        """Bring the slots of a layer to the device that computes it."""
        for stored, whole in self._parts:
            if whole[layer].device != device:
                whole[layer] = whole[layer].to(device)
                stored[layer] = whole[layer][: len(stored[layer])]

    def write(self, layer: int, at_n: Tensor, to_n: Tensor, k_TKC: Tensor, v_TKC: Tensor) -> None:
        device = k_TKC.device
        self._move(layer, device)
        at_n, to_n = at_n.to(device), to_n.to(device)
        self.keys[layer][to_n] = k_TKC[at_n].to(self.dtype)
        self.values[layer][to_n] = v_TKC[at_n].to(self.dtype)

    def with_own(self, layer: int, k_TKC: Tensor, v_TKC: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of all slots, followed by those of the pack: each [S + T, K, C]. Without gradients no slot is
        copied, and the tensors are valid until the next call for this layer."""
        self._move(layer, k_TKC.device)
        keys, values = (self._with(*part, layer, own) for part, own in zip(self._parts, (k_TKC, v_TKC), strict=True))
        return keys, values

    def _with(self, stored: list[Tensor], whole: list[Tensor], layer: int, own_TKC: Tensor) -> Tensor:
        if own_TKC.requires_grad:
            return torch.cat([stored[layer], own_TKC])
        slots, end = len(stored[layer]), len(stored[layer]) + len(own_TKC)
        if len(whole[layer]) < end:
            self._enlarge(stored, whole, layer, slots, len(own_TKC))
        both = whole[layer][:end]
        both[slots:].copy_(own_TKC)
        return both
