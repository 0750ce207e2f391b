"""A2D of an autoregressive checkpoint: the same weights under another class, and a mask token.

Source: ZHZisZZ/dllm, pipelines/a2d/convert.py, which leaves the mask token to the loader. It is written here, in the
files of the tokenizer, and where the embedding has no row left for it, the mean of all rows is added.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dare_bench.checkpoint_files import ADAPTER, diffusion_sign, read_config
from dare_bench.errors import CheckpointError, SaveError
from dare_bench.model_adapters.a2d.network import MASK, NETWORKS
from dare_bench.model_adapters.checkpoint import INDEX, folder_shapes, read_object, weight_files
from dare_bench.model_adapters.saving import COMPANIONS, TRAINING

BASES = {network.config_class.model_type.removeprefix("a2d-"): network for network in NETWORKS}
"""The converted class of each ``model_type`` of transformers."""
ROWS = ("model.embed_tokens.weight", "lm_head.weight")
"""The tensors with a row for each token."""


def convert(source: Path, target: Path, *, shift: bool = False) -> int:
    """Write the A2D checkpoint of a folder to ``target``, a new folder; returns the mask id.

    Args:
        source: of a class that the registration names (``converts_from``).
        shift: a state goes on predicting the next token; config.json says so (``right_shift_logits``), and training,
            likelihoods and decoding read it.

    Raises:
        CheckpointError: no tokenizer.json, quantized or damaged weights, or a diffusion model already.
        SaveError: ``target`` cannot be written.
    """
    config = read_config(source)
    published = _published(source, config)
    tokenizer, mask = _tokenizer(source)
    shapes = folder_shapes(source)
    if ROWS[0] not in shapes:
        raise CheckpointError(
            f"{source}: no weight {ROWS[0]!r}: wrong class in config.json, or an incomplete checkpoint"
        )
    rows = max(shapes[ROWS[0]][0], mask + 1)
    beside = target.with_name(f".{target.name}.saving")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        _write_weights(source, beside, rows)
        for pattern in COMPANIONS:
            for file in source.glob(pattern):
                if file.name not in ("config.json", INDEX, ADAPTER, *TRAINING) and file.suffix != ".py":
                    shutil.copyfile(file, beside / file.name)
        shifted = {"right_shift_logits": True} if shift else {}
        _write_json(beside / "config.json", {**published, "vocab_size": rows, **shifted})
        _name_mask(beside, tokenizer, mask)
        beside.rename(target)
    except (OSError, SafetensorError) as error:
        raise SaveError(f"cannot write {target}: {getattr(error, 'strerror', None) or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return mask


def _tokenizer(source: Path) -> tuple[dict[str, Any], int]:
    """The contents of tokenizer.json, and the first free id; raises CheckpointError."""
    tokenizer = read_object(source / "tokenizer.json")
    try:
        ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
        return tokenizer, 1 + max(ids)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{source}: no tokenizer.json with a vocabulary, which the mask token is added to; save the tokenizer with "
            "transformers as tokenizer.json"
        ) from error


def _published(source: Path, config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the converted checkpoint, as transformers 4 writes it; raises CheckpointError."""
    if config.get("quantization_config") is not None:
        raise CheckpointError(f"{source}: quantized weights (quantization_config); convert the original ones")
    if config.get("use_sliding_window") or "sliding_attention" in (config.get("layer_types") or ()):
        raise CheckpointError(
            f"{source}: sliding-window attention (use_sliding_window, layer_types), which A2D's networks do not have: "
            "every layer would attend to everything; only checkpoints with full attention are converted"
        )
    if (sign := diffusion_sign(source, config)) is not None:
        raise CheckpointError(f"{source}: {sign}, so it seems to be a diffusion model already, not one to convert")
    network = BASES[config["model_type"]]
    rest = {name: value for name, value in config.items() if name != "rope_parameters"}
    if isinstance(rope := config.get("rope_parameters"), dict):  # of transformers 5: the published code cannot read it
        scaling = {name: value for name, value in rope.items() if name != "rope_theta"}
        plain = scaling.get("rope_type", "default") == "default"
        rest |= {
            "rope_theta": rope.get("rope_theta", config.get("rope_theta")),
            "rope_scaling": None if plain else scaling,
        }
    rest |= {"model_type": network.config_class.model_type, "architectures": [network.__name__]}
    network.arch_of(network.config_class.from_dict(rest))  # what the network does not have is refused
    return rest


def _write_weights(source: Path, folder: Path, rows: int) -> None:
    """Copy the weight files; those with fewer than ``rows`` rows for tokens are written again with more."""
    for file in weight_files(source):
        tensors = load_file(file)
        short = [name for name in ROWS if name in tensors and len(tensors[name]) < rows]
        if not short:
            shutil.copyfile(file, folder / file.name)
            continue
        for name in short:
            tensors[name] = _with_rows(tensors[name], rows)
        save_file(tensors, str(folder / file.name), metadata={"format": "pt"})
    if (source / INDEX).is_file():
        index = read_object(source / INDEX)
        index.pop("metadata", None)
        _write_json(folder / INDEX, {"metadata": {"total_size": _size(folder)}, **index})


def _size(folder: Path) -> int:
    return sum(tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values())


def _with_rows(weight_VD: Tensor, rows: int) -> Tensor:
    """With the mean of all rows behind them."""
    mean_D = weight_VD.double().mean(0).to(weight_VD.dtype)
    return torch.cat([weight_VD, mean_D.expand(rows - len(weight_VD), -1)])


def _name_mask(folder: Path, tokenizer: dict[str, Any], mask: int) -> None:
    """Add the mask token to the files of a tokenizer."""
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    token = {"content": MASK, **plain, "special": True}
    tokenizer["added_tokens"].append({"id": mask, **token})
    _write_json(folder / "tokenizer.json", tokenizer)
    settings = read_object(folder / "tokenizer_config.json")
    settings["mask_token"] = MASK
    if "added_tokens_decoder" in settings:
        settings["added_tokens_decoder"][str(mask)] = token
    _write_json(folder / "tokenizer_config.json", settings)
    for name, value in (("special_tokens_map.json", {"mask_token": MASK}), ("added_tokens.json", {MASK: mask})):
        if (folder / name).is_file():
            _write_json(folder / name, read_object(folder / name) | value)


def _write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
