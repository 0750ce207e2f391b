"""The output folder of a training: whose it is, and how far it came (``train.json``)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dare_bench.errors import TrainingError, UsageError
from dare_bench.reading import read_json
from dare_bench.runs import lineage
from dare_bench.runs.writer import atomic_write_json, ensure_folder

FILE = "train.json"
_NAMES = frozenset({"base", "data"})
"""What things are called; what they are is told by their hashes beside it."""
_FOLLOW = frozenset({"data_hash", "items", "batch"})
"""What follows from settings, too, and says less than they do: a seed makes other rows of our own tasks."""


def claim(out: Path, asked: Mapping[str, Any]) -> str:
    """Begin or go on with the training ``asked`` in ``out``; returns its status so far: new, running or complete. One
    that saved nothing before it ended (a wrong setting, an early kill) is as if it had never begun.

    Raises:
        UsageError: the folder holds another training, or a checkpoint that no training here made.
        SaveError: the folder cannot be made or written.
    """
    file = out / FILE
    if not file.exists():
        strange = [name for name in ("config.json", "adapter_config.json") if (out / name).exists()]
        if strange:
            raise UsageError(f"{out} holds a checkpoint ({strange[0]}) but no {FILE}; choose another --output-path")
        ensure_folder(out)
        atomic_write_json(file, {"status": "running", "asked": dict(asked)})
        return "new"
    found = read_json(file, TrainingError)
    before, status = found.get("asked"), found.get("status")
    if not isinstance(before, dict) or not isinstance(status, str):
        raise TrainingError(f"{file} is damaged (it has no asked and status); choose another --output-path")
    if status != "complete" and not any(out.glob("checkpoint-*")) and not (out / lineage.FILE).exists():
        atomic_write_json(file, {"status": "running", "asked": dict(asked)})
        return "new"
    mine = json.loads(json.dumps(asked))
    for name in sorted({*before, *mine} - _NAMES, key=lambda name: (name in _FOLLOW, name)):
        if before.get(name) != mine.get(name):
            raise UsageError(
                f"{out} holds another training: {name} was {_short(before.get(name))}, now {_short(mine.get(name))}; "
                "choose another --output-path, or give the same settings to go on"
            )
    return status


def status(out: Path) -> str:
    """How far the training in ``out`` is, for processes that only follow the first."""
    try:
        return str(read_json(out / FILE, TrainingError).get("status", "new"))
    except TrainingError:
        return "new"


def finish(out: Path, asked: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Mark the training complete."""
    atomic_write_json(out / FILE, {"status": "complete", "asked": dict(asked), **facts})


def _short(value: Any) -> str:
    text = " ".join(json.dumps(value).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
