"""Checkpoint folders: what is in them, is it whole, does it fit the network. Reads safetensors headers only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import read_header
from dare_bench.errors import CheckpointError
from dare_bench.reading import check_folder, read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
TEXTS = frozenset({".json", ".jinja", ".txt", ".model"})
"""Suffixes of the files that tokenizers and configurations are read from."""
CHAT_TEMPLATES = "additional_chat_templates"
"""The one folder within a checkpoint that transformers looks into."""
WEIGHTS = ("F64", "F32", "F16", "BF16")
"""Dtypes that weights may have in a file."""


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file; raises CheckpointError in one line."""
    return read_json(file, CheckpointError) if file.is_file() else {}


def check_files(path: Path) -> None:
    """Nothing in the folder keeps transformers waiting or fills the memory: it opens files by itself. Raises
    CheckpointError."""
    for folder in (path, path / CHAT_TEMPLATES):
        if folder.is_dir():
            check_folder(folder, CheckpointError, texts=TEXTS)


def shapes_of(file: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in a safetensors file; raises CheckpointError."""
    found = read_header(file)
    for name, (dtype, _) in found.items():
        if dtype not in WEIGHTS:
            raise CheckpointError(
                f"{file}: {name} is stored as {dtype}; allowed are {', '.join(WEIGHTS)} (no quantised weights)"
            )
    return {name: shape for name, (_, shape) in found.items()}


def weights_of(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a folder's weights, by its index where it has one; raises CheckpointError."""
    if (path / INDEX).is_file():
        return _indexed(path, _weight_map(path / INDEX))
    if (path / SINGLE).is_file():
        return shapes_of(path / SINGLE)
    others = sorted(p.name for p in path.glob("*.bin")) + sorted(p.name for p in path.glob("*.pt"))
    hint = f"; {others[0]} is a pickle, which is never loaded: convert it to safetensors" if others else ""
    raise CheckpointError(f"{path}: no {SINGLE} and no {INDEX} in it{hint}")


def weight_files(path: Path) -> list[Path]:
    """The files that :func:`weights_of` finds a folder's weights in; raises CheckpointError."""
    index = path / INDEX
    return [path / name for name in sorted(set(_weight_map(index).values()))] if index.is_file() else [path / SINGLE]


def _weight_map(file: Path) -> dict[str, str]:
    """The file of each weight, as an index says; raises CheckpointError."""
    found = read_json(file, CheckpointError).get("weight_map")
    if not isinstance(found, dict) or not found:
        raise CheckpointError(f"{file} is no weight index: weight_map must be an object of names with files")
    for name, shard in found.items():
        if not isinstance(shard, str) or "/" in shard or not shard.endswith(".safetensors"):
            raise CheckpointError(
                f"{file} is no weight index: {name!r} lies in {shard!r}; it must be the name of a *.safetensors file "
                "beside the index"
            )
    return found


def _indexed(path: Path, weight_map: dict[str, str]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in all shards, each in the one that the index names; raises CheckpointError."""
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (path / shard).is_file()]
    if missing:
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(shards)} shards missing ({', '.join(missing[:3])}); fetch them again"
        )
    found: dict[str, tuple[int, ...]] = {}
    lying: set[tuple[str, str]] = set()
    for shard in shards:
        shapes = shapes_of(path / shard)
        found |= shapes
        lying |= {(name, shard) for name in shapes}
    if odd := sorted(lying ^ set(weight_map.items())):
        name, shard = odd[0]
        which = "the shard has it, the index does not" if odd[0] in lying else "the index says so, the shard has none"
        raise CheckpointError(f"{path}: weight {name!r} in {shard}: {which}; fetch the index and its shards again")
    return found


def check_weights(path: Path, expected: dict[str, tuple[int, ...]]) -> None:
    """Every expected tensor is there with its shape, and nothing else; raises CheckpointError naming the first."""
    compare(path, weights_of(path), expected, "the family", "config.json")


def compare(
    path: Path, found: dict[str, tuple[int, ...]], expected: dict[str, tuple[int, ...]], knows: str, says: str
) -> None:
    """Raise CheckpointError where a folder's tensors are not, by name and shape, those that ``says`` asks for."""
    missing = sorted(expected.keys() - found.keys())
    extra = sorted(found.keys() - expected.keys())
    if missing:
        also = f"; it has {extra[0]!r}, which {knows} does not know" if extra else ""
        raise CheckpointError(
            f"{path}: {len(missing)} of {len(expected)} weights missing, first {missing[0]!r}{also}: "
            f"wrong {knows.removeprefix('the ')}, or an incomplete checkpoint"
        )
    if extra:
        raise CheckpointError(
            f"{path}: {len(extra)} weights that {knows} does not know, first {extra[0]!r}: "
            f"wrong {knows.removeprefix('the ')} or config"
        )
    for name, shape in expected.items():
        if found[name] != shape:
            raise CheckpointError(
                f"{path}: {name} has shape {list(found[name])}, {says} says {list(shape)}: "
                "wrong vocabulary or sizes in the config, or weights of another model"
            )
