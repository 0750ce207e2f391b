"""Tensors of the host on a device, in one copy: each copy costs a launch, however small it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

ALIGNED = 16
"""Bytes: tensors of every dtype may begin there."""


def upload(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same tensors on a device, as parts of one buffer, which is pinned for a GPU; on the CPU the tensors
    themselves."""
    if device.type == "cpu":
        return dict(tensors)
    flat = {name: x.contiguous().reshape(-1).view(torch.uint8) for name, x in tensors.items()}
    starts, size = {}, 0
    for name, x in flat.items():
        starts[name], size = size, size + -(-len(x) // ALIGNED) * ALIGNED
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    for name, x in flat.items():
        buffer[starts[name] : starts[name] + len(x)] = x
    there = buffer.to(device, non_blocking=True)
    return {
        name: there[starts[name] : starts[name] + len(flat[name])].view(x.dtype).view(x.shape)
        for name, x in tensors.items()
    }
