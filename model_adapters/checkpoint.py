"""Checkpoint folders: their weights by name and shape, compared with the network. Reads safetensors headers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import ADAPTER, read_header
from dare_bench.errors import CheckpointError
from dare_bench.reading import check_folder, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEXTS = frozenset({".json", ".jinja", ".txt", ".model"})
"""Suffixes of the files of tokenizers and configurations."""
CHAT_TEMPLATES = "additional_chat_templates"
"""The only subfolder that transformers reads."""
WEIGHTS = ("F64", "F32", "F16", "BF16")
"""Dtypes of weights in a file."""


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object, empty if there is no such file; raises CheckpointError."""
    return read_json(file, CheckpointError) if file.is_file() else {}


def check_files(path: Path) -> None:
    """Raise CheckpointError for files that would block transformers or exhaust memory (it opens files itself), and for
    an adapter in the folder, which transformers would apply and a recorded checkpoint would not name."""
    if (path / ADAPTER).is_file():
        raise CheckpointError(
            f"{path}: both a checkpoint and an adapter ({ADAPTER}); move the adapter to another folder"
        )
    for folder in (path, path / CHAT_TEMPLATES):
        if folder.is_dir():
            check_folder(folder, CheckpointError, texts=TEXTS)


def file_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in a safetensors file; raises CheckpointError."""
    header = read_header(file)
    for name, (dtype, _) in header.items():
        if dtype not in WEIGHTS:
            raise CheckpointError(
                f"{file}: {name} is stored as {dtype}; allowed: {', '.join(WEIGHTS)} (no quantized weights)"
            )
    return {name: shape for name, (_, shape) in header.items()}


def folder_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a folder's weights, by its index if it has one; raises CheckpointError."""
    if (path / INDEX).is_file():
        return _indexed(path, _weight_map(path / INDEX))
    if (path / SINGLE).is_file():
        return file_shapes(path / SINGLE)
    others = sorted(p.name for p in path.glob("*.bin")) + sorted(p.name for p in path.glob("*.pt"))
    hint = f"; {others[0]} is a pickle, which is never loaded: convert it to safetensors" if others else ""
    raise CheckpointError(f"{path}: no {SINGLE} and no {INDEX} in it{hint}")


def weight_files(path: Path) -> list[Path]:
    """The files of a folder's weights; raises CheckpointError."""
    index = path / INDEX
    return [path / name for name in sorted(set(_weight_map(index).values()))] if index.is_file() else [path / SINGLE]


def _weight_map(file: Path) -> dict[str, str]:
    """The file of each weight in an index; raises CheckpointError."""
    weight_map = read_json(file, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{file} is not a weight index: weight_map must be an object that maps weight names to files"
        )
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or "/" in shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{file} is not a weight index: {name!r} lies in {shard!r}; it must be the name of a *.safetensors "
                "file beside the index"
            )
    return weight_map


def _indexed(path: Path, weight_map: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in all shards; raises CheckpointError if they differ from the index."""
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (path / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(shards)} shards missing ({', '.join(missing[:3])}); fetch them again"
        )
    shapes = {shard: file_shapes(path / shard) for shard in shards}
    stored = {(name, shard) for shard in shards for name in shapes[shard]}
    if differences := sorted(stored ^ set(weight_map.items())):
        name, shard = first = differences[0]
        reason = (
            "it is in the shard but not in the index" if first in stored else "it is in the index but not in the shard"
        )
        raise CheckpointError(f"{path}: weight {name!r} in {shard}: {reason}; fetch the index and its shards again")
    return {name: shape for shard in shards for name, shape in shapes[shard].items()}


def compare(
    path: Path, shapes: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], owner: str, source: str
) -> None:
    """Raise CheckpointError if a folder's tensors differ from those of ``owner``, whose shapes come from ``source``."""
    missing = sorted(expected.keys() - shapes.keys())
    extra = sorted(shapes.keys() - expected.keys())
    if missing:
        also = f"; it has {extra[0]!r}, which {owner} does not know" if extra else ""
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(expected)} weights missing, first {missing[0]!r}{also}: "
            f"wrong {owner.removeprefix('the ')}, or an incomplete checkpoint"
        )
    if extra:
        raise CheckpointError(
            f"{path}: {len(extra)} weights that {owner} does not know, first {extra[0]!r}: "
            f"wrong {owner.removeprefix('the ')} or config"
        )
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"{path}: {name} has shape {list(shapes[name])}, {source} says {list(shape)}: "
                "wrong vocabulary or sizes in the config, or weights of another model"
            )
