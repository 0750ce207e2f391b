"""What to call runs and checkpoints beside each other: runs by id or path, checkpoints by how they were trained."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from dare_bench.runs.reader import Run

LineageRecord = Mapping[str, Any]
_PEFT = {"lora": "LoRA", "dora": "DoRA"}
_PATH = re.compile(r"^[./~]|^[A-Za-z]:\\|/.*/")


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its id, or its path where another folder has a run of that id."""
    folders: dict[str, set[Path]] = {}
    for run in runs:
        folders.setdefault(run.run_id, set()).add(run.path.resolve())
    return [run.run_id if len(folders[run.run_id]) == 1 else str(run.path) for run in runs]


def letter(at: int) -> str:
    """How the run (or the way of asking) number ``at``, from 0, is called beside the others: A to Z, AA, AB, ..."""
    text = ""
    while at >= 0:
        at, rest = divmod(at, 26)
        text = chr(ord("A") + rest) + text
        at -= 1
    return text


def trainings(lineage: LineageRecord | None) -> list[LineageRecord]:
    """The trainings behind a checkpoint, the first one first; none where its run knows of none."""
    if not (lineage and lineage.get("base") and lineage.get("method")):
        return []
    parents = lineage.get("parents")
    return [*(one for one in (parents if isinstance(parents, list) else ()) if isinstance(one, Mapping)), lineage]


def base_of(training: LineageRecord) -> str:
    """What a training began from, without the folders of a path; with the hash of the adapter that was
    on it, if any."""
    base, adapter = without_folders(str(training.get("base", "?"))), training.get("base_adapter")
    return f"{base}+{str(adapter).removeprefix('sha256:')[:8]}" if adapter else base


def without_folders(text: str) -> str:
    """The last part of a path; a hub id (owner/name) stays whole."""
    return PurePath(text).name or text if _PATH.search(text) else text


def method_of(training: LineageRecord, remarks: Sequence[str] = ()) -> str:
    """A training's method as people write it, with ``remarks`` after the kind of adapter: "SFT (LoRA, seed 1)"."""
    method, peft = str(training.get("method")), training.get("peft")
    shown = method.upper() if method.isalpha() and len(method) <= 5 else method
    told = [*([_PEFT.get(str(peft), str(peft))] if peft else []), *remarks]
    return f"{shown} ({', '.join(told)})" if told else shown


def made_from(chain: Sequence[LineageRecord], remarks: Sequence[Sequence[str]] = ()) -> str:
    """The trainings of a checkpoint in one line: "tiny-llada-base → SFT (LoRA)"; ``remarks`` are by training."""
    methods = [method_of(made, remarks[at] if at < len(remarks) else ()) for at, made in enumerate(chain)]
    return " → ".join([base_of(chain[0]), *methods])
