"""Tensors of records, and of the host on a device in one copy: each copy costs a launch, however small it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

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


def mapped(record: Any, kinds: tuple[type, ...], change: Callable[[str, Tensor], Tensor], name: str = "") -> Any:
    """A record with other tensors, each of which ``change`` makes of its name and the one before; those in its lists,
    dictionaries and dataclasses of these kinds included."""
    if isinstance(record, Tensor):
        return change(name, record)
    if isinstance(record, list):
        return [mapped(item, kinds, change, f"{name}.{i}") for i, item in enumerate(record)]
    if isinstance(record, dict):
        return {key: mapped(item, kinds, change, f"{name}.{key}") for key, item in record.items()}
    if not isinstance(record, kinds):
        return record
    dataclass: Any = record
    parts = {f.name: getattr(dataclass, f.name) for f in fields(dataclass) if f.init}
    return replace(dataclass, **{part: mapped(x, kinds, change, f"{name}.{part}") for part, x in parts.items()})


def tensors_of(record: Any, kinds: tuple[type, ...]) -> dict[str, Tensor]:
    """The tensors of a record by name, as :func:`mapped` finds them."""
    found: dict[str, Tensor] = {}
    mapped(record, kinds, lambda name, x: found.setdefault(name, x))
    return found


def uploaded(record: Any, kinds: tuple[type, ...], device: torch.device) -> Any:
    """A record with its tensors on a device, by one copy."""
    there = upload(tensors_of(record, kinds), device)
    return mapped(record, kinds, lambda name, _: there[name])
