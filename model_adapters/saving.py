"""Save in the published layout: config and companion files unchanged, weights under their published names. An adapter
is saved in the layout of peft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dare_bench.checkpoint_files import ADAPTER, FAMILY
from dare_bench.errors import SaveError
from dare_bench.model_adapters.adapters import is_adapted, write_adapter
from dare_bench.model_adapters.checkpoint import INDEX
from dare_bench.model_adapters.quiet import quiet_transformers
from dare_bench.model_adapters.weights import unused
from dare_bench.reading import read_json
from dare_bench.registry import registry

COMPANIONS = ("*.json", "*.jinja", "*.txt", "*.model", "*.py", "LICENSE*")
"""Tokenizer, template, generation config, published code, license: the files of a checkpoint beside its weights."""


TRAINING = frozenset({"lineage.json", "train.json", "trainer_state.json"})
"""Files of the training that produced a checkpoint; they do not describe checkpoints derived from it."""


def save_checkpoint(
    network: Any, source: Path, target: Path, family: str, state_dict: Mapping[str, Any] | None = None
) -> None:
    """Write ``network`` to ``target``: a PeftModel's adapter alone, else the published layout. Then companion files are
    copied from ``source``, and config.json keeps its published fields, so the original code loads the result; where
    they do not tell the family, one more does.

    Everything is first written to ``.NAME.saving`` beside the target: a failed save leaves the target unchanged, and
    the leftovers of a killed one are replaced by the next.

    Args:
        source: the folder that the (base) network was opened from.
        state_dict: the network's whole state, if no process holds all of it (FSDP).

    Raises:
        SaveError: no space, no permission; a target that is the source, or holds a model of the other kind.
    """
    if target.resolve() == source.resolve():
        raise SaveError(f"{target} is the folder the model was opened from; save to another one")
    _check_kind(target, is_adapted(network))
    beside = target.with_name(f".{target.name}.saving")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
    except OSError as error:
        raise SaveError(f"cannot save the checkpoint to {target}: {error.strerror or error}") from error
    try:
        if is_adapted(network):
            write_adapter(network, beside, state_dict)
        else:
            _write(network, source, beside, family, state_dict)
        _put(beside, target)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        remedy = "free some space or choose another folder"
        raise SaveError(f"cannot save the checkpoint to {target}: {reason}; {remedy}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _check_kind(target: Path, adapted: bool) -> None:
    """Raise SaveError for a folder that would hold both a checkpoint and an adapter, which could be confused."""
    if adapted and (target / "config.json").exists():
        raise SaveError(f"{target} contains a full checkpoint, but an adapter is to be saved; choose another folder")
    if not adapted and (target / ADAPTER).exists():
        raise SaveError(f"{target} contains an adapter, but a full checkpoint is to be saved; choose another folder")


def _put(beside: Path, target: Path) -> None:
    """Move all files to the target, in one step if it does not exist."""
    for file in beside.iterdir():
        file.chmod(0o644)
    if not target.exists():
        beside.chmod(0o755)
        beside.rename(target)
        return
    for old in [*target.glob("*.safetensors"), target / INDEX]:
        old.unlink(missing_ok=True)
    for file in sorted(beside.iterdir()):
        file.replace(target / file.name)


def _write(network: Any, source: Path, folder: Path, family: str, state_dict: Mapping[str, Any] | None) -> None:
    given = {} if state_dict is None else {"state_dict": dict(state_dict)}  # transformers empties it
    if kept := unused(network, source):
        given = {"state_dict": {**(given.get("state_dict") or network.state_dict()), **kept}}
    with quiet_transformers():
        network.save_pretrained(str(folder), **given)
    for pattern in COMPANIONS:
        for file in source.glob(pattern):
            if file.is_file() and file.name not in ("config.json", INDEX, *TRAINING):
                shutil.copyfile(file, folder / file.name)
    original = read_json(source / "config.json", SaveError)
    saved = read_json(folder / "config.json", SaveError)
    for name in ("torch_dtype", "dtype"):
        if name in original:
            original[name] = saved.get("dtype", original[name])
    about = registry().get("family", family).about
    seen = [original.get("model_type"), *(original.get("architectures") or [None])[:1]]
    if seen not in map(list, about["matches"]) and "endings" not in about:
        original[FAMILY] = family
    (folder / "config.json").write_text(json.dumps(original, indent=2) + "\n")
