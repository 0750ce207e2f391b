"""``device="auto"``: a network's layers over all GPUs, then host memory, then the disk, by accelerate's device map.

A layer outside the GPUs is computed on the first one (without a GPU, on the CPU): its weights are copied there for each
forward pass, from host memory, or from the checkpoint's own files. Nothing is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dare_bench.errors import UsageError, brief
from dare_bench.model_adapters.backbone.layers import Layer
from dare_bench.model_adapters.backbone.moe import published
from dare_bench.model_adapters.backbone.quantized import is_quantized
from dare_bench.model_adapters.checkpoint import file_shapes, weight_files
from dare_bench.model_adapters.quiet import quiet_loggers
from dare_bench.model_adapters.weights import check_finite, from_folder, loading

AUTO = "auto"
DISK = "disk"
USED = 0.9
"""The share of the free memory that weights may take if no limits are given; activations and caches need some."""

_ACCELERATE = ("accelerate.big_modeling", "accelerate.utils.modeling")
"""Loggers of messages on devices: what a user needs to know is in the plan."""


def memory_limits(max_memory: Mapping[int | str, int | str] | None = None) -> dict[str, int]:
    """Bytes of weights that each device may hold, the GPUs (``cuda:0``) first.

    Args:
        max_memory: limits as accelerate takes them: ``{0: "70GB", "cpu": "100GB"}``. Devices that it does not name are
            not used, besides the disk. None: most of what is free on each device.

    Raises:
        UsageError: limits that cannot be read, or no accelerate.
    """
    try:
        from accelerate.utils import get_max_memory
    except ImportError:
        raise UsageError(
            "device='auto' needs accelerate, which is not installed: pip install 'dare-bench[train]'"
        ) from None
    with quiet_loggers(*_ACCELERATE):
        if max_memory is None:
            return {_name(device): int(USED * free) for device, free in get_max_memory().items()}
        try:
            limits = get_max_memory({_key(device): limit for device, limit in max_memory.items()})
            if limits and all(type(limit) is int and limit > 0 for limit in limits.values()):
                return {_name(device): limit for device, limit in limits.items()}
        except (AttributeError, TypeError, ValueError):
            pass
    raise UsageError(
        f"max_memory={brief(max_memory)} is not valid; it must name devices (0, 1, ..., cpu) with their memory, as "
        "in {0: 70GB, cpu: 100GB}"
    )


def main_device(limits: Mapping[str, int]) -> str:
    """The device to which inputs go, and which computes what lies outside the GPUs."""
    return next((device for device in limits if device.startswith("cuda")), "cpu")


def _name(device: int | str) -> str:
    return f"cuda:{device}" if isinstance(device, int) else device


def _key(device: int | str) -> int | str:
    """A device as accelerate names it; raises ValueError."""
    return device if device in ("cpu", DISK) else int(str(device).removeprefix("cuda:"))


@dataclass(frozen=True)
class Placement:
    """``modules``: the device of each part of a network by the part's name, in the order of computation; ``limits``:
    bytes of weights that a device may hold; ``held``: those that it is given."""

    modules: Mapping[str, str]
    limits: Mapping[str, int]
    held: Mapping[str, int]

    @property
    def main(self) -> torch.device:
        return torch.device(main_device(self.limits))

    @property
    def offloaded(self) -> frozenset[str]:
        """The places whose weights are copied to the main device for each forward pass."""
        return frozenset({"cpu", DISK} - {self.main.type})

    def described(self) -> Iterator[tuple[str, str]]:
        """Each device, and what it holds."""
        for device, size in self.held.items():
            parts = _runs([name for name, place in self.modules.items() if place == device])
            limit = f" of {self.limits[device] / 1e9:.3g}" if device in self.limits else ""
            how = "read" if device == DISK else "copied"
            copied = f"; {how} to {self.main} in every forward pass" if device in self.offloaded else ""
            yield device, f"{size / 1e9:.3g}{limit} GB of weights ({parts}){copied}"


def _runs(names: Sequence[str]) -> str:
    """Names of modules, with consecutive layers as one: ``model.layers.0 to 9``."""
    runs: list[tuple[str, list[int]]] = []
    for name in names:
        stem, _, last = name.rpartition(".")
        if not last.isdigit():
            runs.append((name or "all", []))
        elif runs and runs[-1][0] == stem and runs[-1][1][-1] == int(last) - 1:
            runs[-1][1].append(int(last))
        else:
            runs.append((stem, [int(last)]))
    return ", ".join(
        f"{stem}.{numbers[0]}" + (f" to {numbers[-1]}" if len(numbers) > 1 else "") if numbers else stem
        for stem, numbers in runs
    )


def plan(network: Any, limits: Mapping[str, int]) -> Placement:
    """Where the parts of a network on the meta device go; nothing is loaded. GPUs get like shares if all fits there.

    Raises:
        UsageError: one that is not divided (see ``DiffusionNetwork.conditions``), but does not fit on one device.
    """
    from accelerate import infer_auto_device_map

    whole = [network.layer.__name__]
    given = {_key(device): limit for device, limit in limits.items()}
    with quiet_loggers(*_ACCELERATE):
        for room in _rooms(network, given):
            device_map = infer_auto_device_map(network, max_memory=room, no_split_module_classes=whole)
            if all(isinstance(device, int) for device in device_map.values()):
                break
    modules = {name: _name(device) for name, device in device_map.items()}
    held: Counter[str] = Counter()
    for name, weight in network.state_dict().items():
        held[_device_of(name, modules)] += weight.nbytes
    if network.conditions and (len(held) > 1 or DISK in held):
        raise UsageError(
            f"device='auto' would divide {type(network).__name__} ({sum(held.values()) / 1e9:.3g} GB) among "
            f"{', '.join(held)}, but it reads its embeddings outside of its layers; give one device that holds it"
        )
    return Placement(modules, dict(limits), dict(held))


def _rooms(network: Any, limits: Mapping[int | str, int]) -> Iterator[dict[int | str, int]]:
    """Limits to try: a GPU's share and one to three layers more, then all that it may hold. (accelerate's own balance
    goes by the size of the first layer, which is the smallest in mixtures of experts.)"""
    sizes = [sum(w.nbytes for w in layer.parameters()) for layer in network.modules() if isinstance(layer, Layer)]
    gpus = [device for device in limits if isinstance(device, int)]
    for more in (1, 2, 3) if gpus else ():
        share = sum(w.nbytes for w in network.parameters()) // len(gpus) + more * max(sizes)
        yield {**limits, **{gpu: min(limits[gpu], share) for gpu in gpus}}
    yield dict(limits)


def _device_of(name: str, modules: Mapping[str, str]) -> str:
    """The device of a weight, by its name in the network."""
    while name not in modules:
        name = name.rpartition(".")[0]
    return modules[name]


def place(network: Any, placement: Placement, path: Path) -> None:
    """Give a network on the meta device the weights of a folder, each on the device of its place.

    Raises:
        CheckpointError: damaged files, NaN, too little memory.
        UsageError: quantized weights of which some would lie on the disk.
    """
    buffers = {name for name, _ in network.named_buffers()}  # these are small, and always where they are used
    devices = {}
    for name in network.state_dict():
        device = _device_of(name, placement.modules)
        if name in buffers and device in placement.offloaded:
            devices[name] = placement.main
        elif device != DISK:
            devices[name] = torch.device(device)
    if DISK in placement.held and is_quantized(network):
        raise UsageError(
            f"{placement.held[DISK] / 1e9:.3g} GB of quantized weights do not fit into memory, and only "
            "unquantized weights can be read from disk in every forward pass; raise max_memory, or leave quantize out"
        )
    from_folder(network, path, devices)
    if len(placement.held) == 1 and DISK not in placement.held:
        return
    from accelerate import dispatch_model

    weights = _Weights(network.state_dict(), path)
    with quiet_loggers(*_ACCELERATE):
        dispatch_model(
            network,
            dict(placement.modules),
            main_device=str(placement.main),
            state_dict=weights,  # those that are not in the network between forward passes
            offload_index={},
        )


class _Weights(Mapping[str, Tensor]):
    """Weights by their names in the network: those of ``state``, and what is on the meta device there from the files
    of a folder, anew each time."""

    def __init__(self, state: Mapping[str, Tensor], path: Path) -> None:
        self.state, self.path = dict(state), path
        shards = {file: safe_open(str(file), framework="pt", backend="pread") for file in weight_files(path)}
        self.shards = {name: shard for file, shard in shards.items() for name in file_shapes(file)}

    def __getitem__(self, name: str) -> Tensor:
        weight = self.state[name]
        if not weight.is_meta:
            return weight
        read = torch.empty_like(weight, device="cpu")
        with loading(self.path):
            for key, part in published({name: read}).items():
                part.copy_(self.shards[key].get_tensor(key))
        check_finite({name: read}, self.path)
        return read

    def __iter__(self) -> Iterator[str]:
        return iter(self.state)

    def __len__(self) -> int:
        return len(self.state)
