"""Names of runs, checkpoints and trainings, as reports and boards show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.text import without_folders

LineageRecord = Mapping[str, Any]
_PEFT = {"lora": "LoRA", "dora": "DoRA"}
_METHODS = {
    "cj_grpo": "CJ-GRPO", "coupled_grpo": "coupled-GRPO", "dtreerpo": "d-TreeRPO", "just_grpo": "JustGRPO",
}  # fmt: skip


class Checkpoint(NamedTuple):
    """Identity of an evaluated checkpoint. Runs without results have only a name."""

    name: str
    content: str = ""
    adapter: str = ""
    dtype: str = ""


def checkpoint_of(run: Run) -> Checkpoint:
    """The checkpoint that a run evaluated; equal for two runs of the same weights under the same name and dtype. A
    checkpoint of unknown content is equal to none of another run."""
    if run.block is None:
        return Checkpoint(run.model)
    model = run.block.model
    content = f"{UNKNOWN}, {run.block.run_id}" if model.content_hash == UNKNOWN else model.content_hash
    return Checkpoint(model.name, content, model.adapter_hash or "", model.dtype)


def lineage_of(run: Run) -> LineageRecord | None:
    """The last training of a run's checkpoint with those before it; None where the run records none."""
    return run.block.model.lineage if run.block is not None else None


def run_names(runs: Sequence[Run]) -> list[str]:
    """The name of each run, or its path where another folder has a run of that id."""
    folders: dict[str, set[Path]] = {}
    for run in runs:
        folders.setdefault(run.run_id, set()).add(run.path.resolve())
    return [run.name if len(folders[run.run_id]) == 1 else str(run.path) for run in runs]


def unknown_text(run: Run) -> str:
    """Who wrote an external result and what it does not record: "external, written by ..."."""
    harness = run.require_block().harness
    version = "" if harness.version == UNKNOWN else f" {harness.version}"
    return (
        f"external, written by the command-line tool of {harness.name}{version}; not recorded: {', '.join(run.unknown)}"
    )


def letter(index: int) -> str:
    """The letter for number ``index`` (from 0): A to Z, AA, AB, ..."""
    text = ""
    while index >= 0:
        index, rest = divmod(index, 26)
        text = chr(ord("A") + rest) + text
        index -= 1
    return text


def trainings(lineage: LineageRecord | None) -> list[LineageRecord]:
    """The trainings behind a checkpoint, the first one first; none where its run records none."""
    if not (lineage and lineage.get("base") and lineage.get("method")):
        return []
    parents = lineage.get("parents")
    parents = [parent for parent in parents if isinstance(parent, Mapping)] if isinstance(parents, list) else []
    return [*parents, lineage]


def training_settings(training: LineageRecord) -> dict[str, Any]:
    """The settings and options of one training; the entries of a mapping stand one by one, as ``reward random``."""
    result: dict[str, Any] = {}
    for name, value in (*training.get("settings", {}).items(), *training.get("options", {}).items()):
        result |= {f"{name} {inner}": v for inner, v in value.items()} if isinstance(value, dict) else {name: value}
    return result


def base_of(training: LineageRecord) -> str:
    """The checkpoint that a training started from, without the folders of a path, with the hash of its adapter if it
    had one."""
    base, adapter = without_folders(str(training.get("base", "?"))), training.get("base_adapter")
    return f"{base}+{str(adapter).removeprefix('sha256:')[:8]}" if adapter else base


def method_of(training: LineageRecord, details: Sequence[str] = ()) -> str:
    """A training's method in its usual spelling, with adapter kind and ``details``: "SFT (LoRA, seed 1)"."""
    method, peft = str(training.get("method")), training.get("peft")
    spelled = _METHODS.get(method) or (method.upper() if method.isalpha() and len(method) <= 5 else method)
    texts = [*([_PEFT.get(str(peft), str(peft))] if peft else []), *details]
    return f"{spelled} ({', '.join(texts)})" if texts else spelled


def training_chain(chain: Sequence[LineageRecord], details: Sequence[Sequence[str]] = ()) -> str:
    """The trainings of a checkpoint in one line: "tiny-llada-base → SFT (LoRA)"; ``details`` are by training."""
    methods = [method_of(training, details[at] if at < len(details) else ()) for at, training in enumerate(chain)]
    return " → ".join([base_of(chain[0]), *methods])
