"""What rows of a table are called: checkpoints by what they were trained from and how, settings where they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from dare_bench.analysis.names import base_of, made_from, trainings, without_folders
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Block
from dare_bench.runs.scores import opened_with

_SEEDS = ("python seed", "numpy seed", "seed", "few-shot seed")

Checkpoint = tuple[str, str, str | None]
Details = dict[str, str]


def checkpoint_of(block: Block) -> Checkpoint:
    """Two runs with the same one evaluated the same weights under the same name."""
    return block.model.name, block.model.content_hash, block.model.adapter_hash


def checkpoint_names(blocks: Sequence[Block]) -> dict[Checkpoint, str]:
    """A name for each checkpoint, no two the same: "tiny-llada-base → SFT (LoRA)" for one that was trained here, with
    the details of its training (data, steps, seed, options) that set it apart from the others of that name."""
    known = {checkpoint_of(block): block for block in blocks}
    alike: dict[str, list[Checkpoint]] = {}
    for key, block in known.items():
        alike.setdefault(_name(block, []), []).append(key)
    names: dict[Checkpoint, str] = {}
    for own in alike.values():
        telling = _telling([_details(known[key]) for key in own])
        for key, details in zip(own, telling, strict=True):
            names[key] = _name(known[key], details)
    counts = list(names.values())
    return {key: name if counts.count(name) == 1 else f"{name} [{_short(key)}]" for key, name in names.items()}


def family_and_depth(block: Block) -> tuple[str, int]:
    """The checkpoint that all training began from, and how many trainings lie between."""
    chain = trainings(block.model.lineage)
    return (base_of(chain[0]) if chain else block.model.name), len(chain)


def _name(block: Block, details: Sequence[Details]) -> str:
    chain = trainings(block.model.lineage)
    return made_from(chain, [list(training.values()) for training in details]) if chain else block.model.name


def _details(block: Block) -> list[Details]:
    """By training: every detail as it would be told, by its name."""
    return [_details_of(training) for training in trainings(block.model.lineage)]


def _details_of(training: Mapping[str, Any]) -> Details:
    step, steps = training.get("step"), training.get("steps")
    texts = {
        "data": f"on {without_folders(str(training.get('data')))}",
        "step": f"{steps} steps" if step == steps else f"step {step} of {steps}",
        "seed": f"seed {training.get('seed')}",
    }
    others = {**(training.get("options") or {}), **(training.get("settings") or {})}
    return texts | {
        name: f"{name} {value}" for name, value in others.items() if value is not None and name not in texts
    }


def _telling(several: Sequence[list[Details]]) -> list[list[Details]]:
    """Of each checkpoint's details as few as tell all of them apart, the first ones first."""
    places = dict.fromkeys((at, name) for chain in several for at, details in enumerate(chain) for name in details)
    shown: list[tuple[str | None, ...]] = [()] * len(several)
    chosen: list[tuple[int, str]] = []
    for at, name in places:
        more = [(*old, chain[at].get(name)) for old, chain in zip(shown, several, strict=True)]
        if len(set(more)) > len(set(shown)):
            shown = more
            chosen.append((at, name))
    return [
        [{n: details[n] for place, n in chosen if place == at and n in details} for at, details in enumerate(chain)]
        for chain in several
    ]


def _short(key: Checkpoint) -> str:
    return hashlib.blake2b("".join(map(str, key)).encode(), digest_size=4).hexdigest()


_MISSING = object()


def settings_texts(rows: Sequence[Sequence[Run]]) -> list[str]:
    """For each row (its runs) the settings that differ from another row's; empty where none do."""
    blocks = [[run.block for run in row if run.block is not None] for row in rows]
    asked = dict.fromkeys(name for row in blocks for block in row for name in block.decoding_requested)
    estimator = dict.fromkeys(n for row in blocks for block in row for t in block.tasks.values() for n in t.likelihood)
    known = [_settings(runs, row, [*asked], [*estimator]) for runs, row in zip(rows, blocks, strict=True)]
    texts = []
    for own in known:
        own_texts = []
        for name, value in own.items():
            others = [other.get(name, _MISSING) for other in known]
            if value is not None and any(other is not _MISSING and other != value for other in others):
                own_texts.append(f"{name} {value}")
        texts.append(", ".join(own_texts))
    return texts


def _settings(runs: Sequence[Run], blocks: Sequence[Block], asked: list[str], estimator: list[str]) -> dict[str, Any]:
    first, tasks = blocks[0], [task for block in blocks for task in block.tasks.values()]
    settings = {name: _only([t.decoding[name] for t in tasks if name in t.decoding]) for name in asked}
    settings |= {name: _only([t.likelihood[name] for t in tasks if name in t.likelihood]) for name in estimator}
    settings |= {"dtype": first.model.dtype, **opened_with(runs[0].results)}
    settings |= {"harness": first.harness.name, "answers to each prompt": first.repeats}
    settings |= dict(zip(_SEEDS, first.seeds, strict=True))
    template = runs[0].results.get("chat_template_sha")
    settings["chat template"] = str(template)[:8] if template else "not applied"
    if template:
        settings["examples as turns"] = runs[0].results.get("fewshot_as_multiturn")
    return {name: value for name, value in settings.items() if value is not _MISSING}


def _only(values: Sequence[Any]) -> Any:
    """The value that all tasks share; "by task" where they do not; missing where none has it."""
    return _MISSING if not values else values[0] if all(value == values[0] for value in values) else "by task"
