"""Back to the published layout: config and companion files as they came, weights under their published names."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dare_bench.errors import SaveError
from dare_bench.model_adapters.checkpoint import INDEX
from dare_bench.model_adapters.quiet import quiet_transformers

COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.py", "LICENSE*")
"""Tokenizer, template, generation config, published code, licence: what belongs to a checkpoint beside its weights."""


def save_checkpoint(network: Any, source: Path, target: Path) -> None:
    """Write ``network`` to ``target``. Companion files are copied from ``source``, and config.json keeps its published
    fields, so the original code loads the result. All is written beside the target first: a failed save leaves the
    target as it was. Raises SaveError.
    """
    if target.resolve() == source.resolve():
        raise SaveError(f"{target} is the folder the model was opened from; save to another one")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise SaveError(f"cannot save the checkpoint to {target}: {error.strerror or error}") from error
    try:
        _write(network, source, beside)
        target.mkdir(exist_ok=True)
        for old in [*target.glob("*.safetensors"), target / INDEX]:
            old.unlink(missing_ok=True)
        for file in sorted(beside.iterdir()):
            file.chmod(0o644)
            file.replace(target / file.name)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SaveError(f"cannot save the checkpoint to {target}: {reason}; choose another folder or disk") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _write(network: Any, source: Path, folder: Path) -> None:
    with quiet_transformers():
        network.save_pretrained(str(folder))
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and file.name not in ("config.json", INDEX):
                shutil.copyfile(file, folder / file.name)
    original = json.loads((source / "config.json").read_text())
    saved = json.loads((folder / "config.json").read_text())
    for name in ("torch_dtype", "dtype"):
        if name in original:
            original[name] = saved.get("dtype", original[name])
    (folder / "config.json").write_text(json.dumps(original, indent=2) + "\n")
