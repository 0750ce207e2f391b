"""Load the weights of a checkpoint folder into a network: at opening, and in place when a training resumes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from dare_bench.errors import CheckpointError
from dare_bench.model_adapters.backbone.moe import published, published_shapes
from dare_bench.model_adapters.checkpoint import compare, weight_files, weights_of
from dare_bench.model_adapters.quiet import quiet_transformers


def is_unused(network: Any, name: str) -> bool:
    """Is this weight of a folder one that the network (or its class) does not have by design: a vision tower's?"""
    return any(re.search(pattern, name) for pattern in network._keys_to_ignore_on_load_unexpected or ())


def from_folder(network: Any, path: Path, config: Any, dtype: torch.dtype) -> Any:
    """A network of the class ``network`` with a folder's weights; raises CheckpointError."""
    try:
        with quiet_transformers():
            return network.from_pretrained(str(path), config=config, dtype=dtype, use_safetensors=True)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{path}: its weights do not load ({reason})") from error


def into(network: Any, path: Path) -> None:
    """Load the weights of a folder into an open network in place. For a moment, both are in memory.

    Raises:
        CheckpointError: missing or unknown weights, another shape, NaN.
    """
    shapes = {name: shape for name, shape in weights_of(path).items() if not is_unused(network, name)}
    compare(path, shapes, published_shapes(network.state_dict()), "the family", "config.json")
    weights = from_folder(type(network), path, deepcopy(network.config), network.dtype).state_dict()
    check_finite(weights, path)
    network.load_state_dict(weights)


def holds(state: Mapping[str, Tensor], path: Path, dtype: torch.dtype, network: Any) -> bool:
    """Are these, of this network, the weights of a folder, each as it is opened in ``dtype``? They are read one at a
    time."""
    remaining = published(state)
    for file in weight_files(path):
        with safe_open(str(file), framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - no mapping: it cannot be iterated over
                if is_unused(network, name):
                    continue
                weight = remaining.pop(name, None)
                if weight is None or weight.dtype != dtype:
                    return False
                if not torch.equal(shard.get_tensor(name).to(dtype).to(weight.device), weight):
                    return False
    return not remaining


def check_finite(weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights with NaN: some attention kernels hide them, and the model would silently be worse.

    Raises:
        CheckpointError: naming the first tensor with NaN or infinite values.
    """
    for name, weight in weights.items():
        if not bool(torch.isfinite(weight).all()):
            count = int((~torch.isfinite(weight)).sum())
            raise CheckpointError(f"{path}: {name} holds {count} NaN or infinite values; fetch or train it again")


def unused(network: Any, path: Path) -> dict[str, Tensor]:
    """The weights of a folder that the network does not have by design, which a saved copy keeps."""
    kept: dict[str, Tensor] = {}
    for file in weight_files(path) if network._keys_to_ignore_on_load_unexpected else ():
        with safe_open(str(file), framework="pt") as shard:
            kept |= {name: shard.get_tensor(name) for name in shard.keys() if is_unused(network, name)}  # noqa: SIM118
    return kept
