"""``dare_bench.load``: a bundled name, a folder, or a hub id in the published layout -> a model that answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dare_bench.errors import CheckpointError
from dare_bench.registry import Entry, registry

if TYPE_CHECKING:
    from dare_bench.model import Model

FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
"""What is fetched from a hub: weights, configuration, tokenizer. Never Python code, never a pickle."""


def locate(checkpoint: str | Path) -> Path:
    """The folder of a checkpoint: a bundled name, a folder, or a hub id (downloaded or from the hub's cache).

    Raises:
        CheckpointError: none of these.
    """
    name = str(checkpoint)
    if name in registry().names("checkpoint"):
        return Path(registry().get("checkpoint", name).target)
    path = Path(checkpoint).expanduser()
    if path.exists():
        return path
    if name.count("/") == 1 and not name.startswith((".", "/", "~")):
        return _from_hub(name)
    bundled = ", ".join(registry().names("checkpoint"))
    raise CheckpointError(f"no checkpoint {name!r}: no such folder, hub id or bundled name (bundled: {bundled})")


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=FILES))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"cannot fetch {name!r} from the hub, and no such folder is here ({reason})") from error


def family_of(path: Path, family: str | None = None) -> Entry:
    """The family's registry entry, by ``family`` or by config.json's (model_type, architectures[0]).

    Raises:
        CheckpointError: no config, or a model of a family that is not known.
    """
    if family is not None:
        return registry().get("family", family)
    file = path / "config.json"
    try:
        config = json.loads(file.read_text())
        seen = (config.get("model_type"), (config.get("architectures") or [None])[0])
    except FileNotFoundError:
        raise CheckpointError(
            f"{path}: no config.json in it; a checkpoint folder in the published layout has one"
        ) from None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read as a model configuration ({error})") from error
    entries = registry().entries("family")
    for entry in entries:
        if list(seen) in [list(match) for match in entry.about.get("matches", [])]:
            return entry
    known = ", ".join(
        f"{entry.name} ({'/'.join(map(str, match))})" for entry in entries for match in entry.about.get("matches", [])
    )
    raise CheckpointError(
        f"{path}: model_type={seen[0]!r}, architecture={seen[1]!r} is of no known family; known: {known}; "
        "family= overrides this"
    )


def load(
    checkpoint: str | Path,
    *,
    device: str | None = None,
    dtype: Any = None,
    family: str | None = None,
    mask_id: int | None = None,
    eos_id: int | list[int] | None = None,
    eot_id: int | None = None,
) -> Model:
    """Open a checkpoint in its published layout, without remote code.

    Args:
        checkpoint: a bundled name (``dare-bench ls models``), a Hugging Face folder, or a hub id.
        device: ``cpu``, ``cuda``, ...; CUDA where there is one when not given.
        dtype: ``float32``, ``bfloat16``, ...; float32 on CPU, the checkpoint's own on a GPU when not given.
        family: overrides what config.json says.
        mask_id, eos_id, eot_id: override what config and tokenizer say.

    Returns:
        A :class:`dare_bench.Model`. A folder without a tokenizer opens and takes token ids.

    Raises:
        CheckpointError: not there, not whole, another family, wrong vocabulary.
        UsageError: unknown device, dtype or family.
    """
    from dare_bench.model import Model

    path = locate(checkpoint)
    entry = family_of(path, family)
    opener = entry.load()
    loaded = opener.open(path, device=device, dtype=dtype, mask_id=mask_id, eos_id=eos_id, eot_id=eot_id)
    return Model(loaded, name=str(checkpoint), path=path)
