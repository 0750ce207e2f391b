"""Checkpoint folders: what is in them, is it whole, does it fit the network. Reads safetensors headers only."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from dare_bench.errors import CheckpointError

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def read_config(path: Path) -> dict[str, Any]:
    """config.json as written; raises CheckpointError in one line."""
    file = path / "config.json"
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder; give a checkpoint folder, a hub id or a bundled name")
    if not file.is_file():
        raise CheckpointError(f"{path}: no config.json in it; a checkpoint folder in the published layout has one")
    try:
        config = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: not valid JSON ({error})") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{file}: expected an object, found {type(config).__name__}")
    return config


def read_object(file: Path) -> dict[str, Any]:
    """A JSON object, empty where there is no such file; raises CheckpointError in one line."""
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: cannot be read as JSON ({error}); fetch it again") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{file}: expected an object, found {type(found).__name__}; fetch it again")
    return found


def header(file: Path) -> dict[str, tuple[int, ...]]:
    """Tensor names and shapes of a safetensors file, after checking that the file is as long as it says.

    Format: 8 bytes little-endian header length, JSON header with data offsets, data (huggingface/safetensors).
    """
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            if len(start) < 8:
                raise CheckpointError(f"{file}: {size} bytes, too short for a safetensors file; fetch it again")
            (length,) = struct.unpack("<Q", start)
            if length > min(size, 100_000_000):
                raise CheckpointError(f"{file}: not a safetensors file, or damaged at its start; fetch it again")
            entries = json.loads(stream.read(length))
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing; fetch the checkpoint again") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file}: not a safetensors file, or damaged at its start; fetch it again") from error
    try:
        entries.pop("__metadata__", None)
        shapes = {name: tuple(int(n) for n in entry["shape"]) for name, entry in entries.items()}
        expected = 8 + length + max((int(entry["data_offsets"][1]) for entry in entries.values()), default=0)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file}: its header is not that of a safetensors file; fetch it again") from error
    if size < expected:
        raise CheckpointError(f"{file}: truncated, {size} bytes of {expected}; fetch it again")
    return shapes


def shards(path: Path) -> list[Path]:
    """The weight files of a folder, by its index where it has one."""
    if (path / INDEX).is_file():
        try:
            names = sorted(set(json.loads((path / INDEX).read_text())["weight_map"].values()))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path / INDEX}: not a valid weight index ({error})") from error
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise CheckpointError(
                f"{path}: {len(missing)} of {len(names)} shards missing ({', '.join(missing[:3])}); fetch them again"
            )
        return [path / name for name in names]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    others = sorted(p.name for p in path.glob("*.bin")) + sorted(p.name for p in path.glob("*.pt"))
    hint = f"; {others[0]} is a pickle, which is never loaded: convert it to safetensors" if others else ""
    raise CheckpointError(f"{path}: no {SINGLE} and no {INDEX} in it{hint}")


def check_weights(path: Path, expected: dict[str, tuple[int, ...]]) -> None:
    """Every expected tensor is there with its shape, and nothing else; raises CheckpointError naming the first."""
    found: dict[str, tuple[int, ...]] = {}
    for file in shards(path):
        found.update(header(file))
    compare(path, found, expected, "the family", "config.json")


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
