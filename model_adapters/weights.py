"""Load the weights of a checkpoint folder into a network: at opening, and in place when a training resumes."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dare_bench.errors import CheckpointError, first_line
from dare_bench.model_adapters.backbone.moe import published, published_shapes
from dare_bench.model_adapters.backbone.quantized import Rows, weights_of
from dare_bench.model_adapters.checkpoint import compare, folder_shapes, weight_files


def is_unused(network: Any, name: str) -> bool:
    """Is this weight of a folder one that the network (or its class) does not have by design: a vision tower's?"""
    pattern = getattr(network, "unused", None)  # transformers' own networks have all weights of their files
    return pattern is not None and re.search(pattern, name) is not None


def from_folder(network: Any, path: Path, devices: Mapping[str, torch.device]) -> None:
    """Give a network on the meta device, whose shapes are those of a folder, its weights: each is read into its place.
    Besides what is placed there, host memory holds one tensor of a file at a time.

    Args:
        devices: of each weight by its name in the network; others stay on the meta device.

    Raises:
        CheckpointError: damaged files, NaN, too little memory.
    """
    state = network.state_dict()
    with loading(path):
        empty = {
            name: torch.empty(state[name].shape, dtype=state[name].dtype, device=device)
            for name, device in devices.items()
        }
    network.load_state_dict(empty, assign=True, strict=False)
    _fill(network, path)


def into(network: Any, path: Path) -> None:
    """Load the weights of a folder into an open network in place; after an error it may hold some of them.

    Raises:
        CheckpointError: missing or unknown weights, another shape, NaN.
    """
    shapes = {name: shape for name, shape in folder_shapes(path).items() if not is_unused(network, name)}
    compare(path, shapes, published_shapes(network.state_dict()), "the family", "config.json")
    _fill(network, path)


def _fill(network: Any, path: Path) -> None:
    """Copy a folder's weights into those of a network that are not on the meta device; raises CheckpointError."""
    places = {name: place for name, place in published(weights_of(network)).items() if not place.is_meta}
    missing = set(places)
    with loading(path):
        for name, weight in stored(path, places.keys()):
            places[name].copy_(weight)
            missing.discard(name)
    if missing:  # the files have changed since their headers were compared
        raise CheckpointError(f"{path}: {len(missing)} weights missing, first {min(missing)!r}; fetch it again")
    check_finite({name: weight for name, weight in network.state_dict().items() if not weight.is_meta}, path)


def stored(path: Path, names: Container[str] | None = None) -> Iterator[tuple[str, Tensor]]:
    """The weights of a folder's files by name, or those among ``names``, read one at a time into memory of their own:
    pages of a file that is mapped would count as memory of the process until the file is closed."""
    for file in weight_files(path):
        with safe_open(str(file), framework="pt", backend="pread") as shard:
            for name in shard.keys():  # noqa: SIM118 - no mapping: it cannot be iterated over
                if names is None or name in names:
                    yield name, shard.get_tensor(name)


@contextmanager
def loading(path: Path) -> Iterator[None]:
    """Errors of files and of memory as CheckpointError."""
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{path}: its weights do not load ({first_line(error)})") from error


def holds(state: Mapping[str, Tensor | Rows], path: Path, dtype: torch.dtype, network: Any) -> bool:
    """Are these, of this network, the weights of a folder, each as it is opened in ``dtype``? Those on the meta device
    are: they are read from its files in every forward pass."""
    remaining = published(state)
    for name, read in stored(path):
        if is_unused(network, name):
            continue
        weight = remaining.pop(name, None)
        if weight is None or not (weight.is_meta or _is(weight, read, dtype)):
            return False
    return not remaining


def _is(weight: Tensor | Rows, read: Tensor, dtype: torch.dtype) -> bool:
    if isinstance(weight, Rows):
        return weight.holds(read)
    return weight.dtype == dtype and torch.equal(read.to(dtype).to(weight.device), weight)


def check_finite(weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights with NaN: some attention kernels hide them, and the model would silently be worse.

    Raises:
        CheckpointError: naming the first tensor with NaN or infinite values.
    """
    for name, weight in weights.items():
        if weight.numel() and not all(map(math.isfinite, map(float, weight.aminmax()))):  # many times isfinite's speed
            count = int((~torch.isfinite(weight)).sum())
            raise CheckpointError(f"{path}: {name} holds {count} NaN or infinite values; fetch or train it again")


def unused(network: Any, path: Path) -> dict[str, Tensor]:
    """The weights of a folder that the network does not have by design, which a saved copy keeps."""
    if getattr(network, "unused", None) is None:
        return {}
    return {name: weight for name, weight in stored(path) if is_unused(network, name)}
