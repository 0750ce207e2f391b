"""Weights of transformers' own networks: loaded by transformers, checked by us."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import is_accelerate_available
from transformers.utils import logging as transformers_logging

from dare_bench.errors import CheckpointError, first_line
from dare_bench.log import log
from dare_bench.model_adapters.checkpoint import folder_shapes
from dare_bench.model_adapters.configs import describing
from dare_bench.model_adapters.quiet import quiet_transformers
from dare_bench.model_adapters.weights import check_finite


def check_sizes(path: Path, network: type[Any], config: Any) -> int:
    """Rows of the embedding that a config describes; raises CheckpointError if it describes more layers or weights than
    the files hold, before memory is taken for them."""
    shapes = folder_shapes(path)
    layers = getattr(config.get_text_config(), "num_hidden_layers", 0)
    if isinstance(layers, int) and layers > len(shapes):
        raise CheckpointError(
            f"{path}: config.json describes {layers} layers, but the files hold {len(shapes)} weights: wrong sizes in "
            "the config, or an incomplete checkpoint"
        )
    try:
        with describing(), torch.device("meta"):
            empty = network(config)
            described = {id(weight): weight.numel() for weight in empty.parameters()}
            rows = int(empty.get_input_embeddings().weight.shape[0])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    held = sum(map(math.prod, shapes.values()))
    if (count := sum(described.values())) > held:
        raise CheckpointError(
            f"{path}: config.json describes {count:,} parameters, but the files hold {held:,}: wrong sizes in the "
            "config, or an incomplete checkpoint"
        )
    return rows


def load_network(network: type[Any], path: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """A network with a folder's weights, each of which must be there in its shape. Where accelerate is installed, they
    are read straight to ``device``; without it, host memory holds all of them first.

    Raises:
        CheckpointError: weights are missing or of another shape, NaN, or files that do not load.
    """
    shown = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # its report is raised or logged below
    straight = {"device_map": {"": device}} if is_accelerate_available() else {}
    try:
        with quiet_transformers():
            loaded, info = network.from_pretrained(
                str(path),
                config=config,
                dtype=dtype,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # refused below, with the name
                local_files_only=True,
                output_loading_info=True,
                **straight,
            )
            loaded.to(device)
    except (OSError, RuntimeError, ValueError, LookupError, SafetensorError) as error:
        raise CheckpointError(f"{path}: its weights do not load ({first_line(error)})") from error
    finally:
        transformers_logging.set_verbosity(shown)
    if missing := sorted(map(str, info["missing_keys"])):
        raise CheckpointError(
            f"{path}: {len(missing)} weights missing, first {missing[0]!r}: wrong config, or an incomplete checkpoint"
        )
    if other := sorted(info["mismatched_keys"], key=str):
        name, held, described = other[0]
        raise CheckpointError(
            f"{path}: {len(other)} weights of another shape, first {name!r}: {list(held)} in the files, config.json "
            f"says {list(described)}: wrong vocabulary or sizes in the config, or weights of another model"
        )
    if unused := sorted(map(str, info["unexpected_keys"])):
        log.warning("%s: %d weights are not part of %s, first %r", path, len(unused), network.__name__, unused[0])
    check_finite(loaded.state_dict(), path)
    return loaded


def under_file_names(network: Any, path: Path) -> dict[str, Tensor]:
    """The weights of a network by the names in a folder's files, which may leave out the name of the inner network, and
    weights that are another one's (a tied head)."""
    names = folder_shapes(path).keys()
    inner = f"{network.base_model_prefix}."
    state = network.state_dict()
    named = {short if (short := name.removeprefix(inner)) in names else name: value for name, value in state.items()}
    held = {value.data_ptr() for name, value in named.items() if name in names}
    return {name: value for name, value in named.items() if name in names or value.data_ptr() not in held}
