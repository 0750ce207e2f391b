"""Names of runs, checkpoints and trainings. That of a checkpoint is unique: base and trainings, with the details that
distinguish these.

A name alone on a page always has data, seed and step (:func:`full_names`). In a table it has only the details that
distinguish it from the others (:func:`short_names`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.formatting import setting_text
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.text import one_line, without_folders

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


_FACTS = (("", "data"), ("seed ", "seed"), ("step ", "step"))
"""What a full name has of the last training, with the word before it."""
_LENGTH = 40
"""Maximum characters of a setting's name, and of its value."""

Details = Mapping[str, str]
"""The details of a training in words, by name."""


@dataclass(frozen=True, slots=True)
class CheckpointName:
    """``title``: the checkpoint, or its base and trainings if it was trained here. ``detail``: data, seed, step."""

    title: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.title}, {self.detail}" if self.detail else self.title


def full_names(checkpoints: Iterable[tuple[Checkpoint, LineageRecord | None]]) -> dict[Checkpoint, CheckpointName]:
    """A name for each checkpoint from its lineage, or without one the name that it was evaluated under."""
    lineages = dict(checkpoints)
    names = {checkpoint: _full_name(checkpoint, lineage) for checkpoint, lineage in lineages.items()}
    trained = {checkpoint: name for checkpoint, name in names.items() if trainings(lineages[checkpoint])}
    for alike in _alike(trained):
        title, common = names[alike[0]].title, names[alike[0]].detail
        chains = [trainings(lineages[checkpoint]) for checkpoint in alike]
        further = distinguishing([[*map(_details, chain[:-1]), _further_details(chain[-1])] for chain in chains])
        texts = [[text for training in chain for text in training] for chain in further]
        details = [", ".join(filter(None, [common, *chain])) for chain in texts]
        if len(set(details)) < len(details):  # they differ in their evaluated names or precision
            details = [f"{detail}, {_content(checkpoint)}" for detail, checkpoint in zip(details, alike, strict=True)]
        names |= {key: CheckpointName(title, detail) for key, detail in zip(alike, details, strict=True)}
    return names


def short_names(checkpoints: Iterable[tuple[Checkpoint, LineageRecord | None]]) -> dict[Checkpoint, str]:
    """A name in one line for each checkpoint: "tiny-llada-base → SFT (LoRA, seed 1)" for one that was trained here."""
    lineages = dict(checkpoints)
    names = {checkpoint: _title(checkpoint, lineage) for checkpoint, lineage in lineages.items()}
    for alike in _alike(names):
        chains = [list(map(_details, trainings(lineages[checkpoint]))) for checkpoint in alike]
        for key, texts in zip(alike, distinguishing(chains), strict=True):
            names[key] = _title(key, lineages[key], texts)
    counts = Counter(names.values())
    for key, name in names.items():
        if counts[name] > 1:
            content = f"{key.name}{key.content}{key.adapter or None}".encode()
            names[key] = f"{name} [{hashlib.blake2b(content, digest_size=4).hexdigest()}]"
    return names


def setting_texts(training: LineageRecord) -> dict[str, str]:
    """The settings and options of a training in words, by name: "learning_rate 0.001", "reward random" (one that is
    on), "no bf16" (one that is off)."""
    settings = {name: value for name, value in training_settings(training).items() if value is not None}
    return {
        name: one_line(setting_text(one_line(name, _LENGTH), value), 2 * _LENGTH) for name, value in settings.items()
    }


def distinguishing(chains: Sequence[Sequence[Details]]) -> list[list[list[str]]]:
    """The fewest details of each chain of trainings that distinguish all chains, in their order, by training."""
    places = dict.fromkeys((at, name) for chain in chains for at, details in enumerate(chain) for name in details)
    values: list[tuple[str | None, ...]] = [()] * len(chains)
    chosen: list[tuple[int, str]] = []
    for at, name in places:
        extended = [(*old, chain[at].get(name)) for old, chain in zip(values, chains, strict=True)]
        if len(set(extended)) > len(set(values)):
            values = extended
            chosen.append((at, name))
    return [
        [[details[n] for place, n in chosen if place == at and n in details] for at, details in enumerate(chain)]
        for chain in chains
    ]


def _alike(names: Mapping[Checkpoint, object]) -> Iterator[list[Checkpoint]]:
    by_name: dict[object, list[Checkpoint]] = {}
    for checkpoint, name in names.items():
        by_name.setdefault(name, []).append(checkpoint)
    return (checkpoints for checkpoints in by_name.values() if len(checkpoints) > 1)


def _title(checkpoint: Checkpoint, lineage: LineageRecord | None, details: Sequence[Sequence[str]] = ()) -> str:
    chain = trainings(lineage)
    return training_chain(chain, details) if chain else checkpoint.name


def _full_name(checkpoint: Checkpoint, lineage: LineageRecord | None) -> CheckpointName:
    last = trainings(lineage)[-1:]
    facts = [(word, training.get(key)) for training in last for word, key in _FACTS]
    detail = ", ".join(f"{word}{value}" for word, value in facts if value is not None)
    return CheckpointName(_title(checkpoint, lineage), detail)


def _details(training: LineageRecord) -> Details:
    data, step, steps, seed = (training.get(name) for name in ("data", "step", "steps", "seed"))
    texts = {
        "data": None if data is None else f"on {without_folders(str(data))}",
        "step": None if step is None else f"{steps} steps" if step == steps else f"step {step} of {steps}",
        "seed": None if seed is None else f"seed {seed}",
    }
    known = {name: text for name, text in texts.items() if text is not None}
    return known | {name: text for name, text in setting_texts(training).items() if name not in texts}


def _further_details(training: LineageRecord) -> Details:
    """Those of a training whose data, seed and step are in its name already."""
    steps, said = training.get("steps"), {key for _, key in _FACTS}
    in_all = {} if steps is None else {"steps": f"{steps} steps in all"}
    return in_all | {name: text for name, text in setting_texts(training).items() if name not in said}


def _content(checkpoint: Checkpoint) -> str:
    """What distinguishes two checkpoints of one lineage: content and precision."""
    content = "+".join(part.rpartition(":")[2][:6] for part in (checkpoint.content, checkpoint.adapter) if part)
    return ", ".join(filter(None, [content, checkpoint.dtype])) or checkpoint.name
