"""Names of the rows of a table: checkpoints by base and training, settings where they differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from dare_bench.analysis.names import (
    Checkpoint,
    LineageRecord,
    base_of,
    checkpoint_of,
    training_chain,
    trainings,
)
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN, Block
from dare_bench.runs.scores import opened_with
from dare_bench.runs.text import without_folders

_SEEDS = ("python seed", "numpy seed", "seed", "few-shot seed")

Details = dict[str, str]


def weights_of(block: Block) -> Checkpoint:
    """Equal for two runs that evaluated the same weights under the same name, in whatever precision."""
    return checkpoint_of(block)._replace(dtype="")


def checkpoint_names(blocks: Sequence[Block]) -> dict[Checkpoint, str]:
    """A unique name for each checkpoint: "tiny-llada-base → SFT (LoRA)" for one that was trained here, with the details
    of its training (data, steps, seed, options) that distinguish it from others of that name."""
    by_checkpoint = {weights_of(block): block for block in blocks}
    same_name: dict[str, list[Checkpoint]] = {}
    for key, block in by_checkpoint.items():
        same_name.setdefault(_name(block, []), []).append(key)
    names: dict[Checkpoint, str] = {}
    for keys in same_name.values():
        chains = [list(map(_details, trainings(by_checkpoint[key].model.lineage))) for key in keys]
        for key, details in zip(keys, _distinguishing(chains), strict=True):
            names[key] = _name(by_checkpoint[key], details)
    counts = Counter(names.values())
    for key, name in names.items():
        if counts[name] > 1:
            content = f"{key.name}{key.content}{key.adapter or None}".encode()
            names[key] = f"{name} [{hashlib.blake2b(content, digest_size=4).hexdigest()}]"
    return names


def family_and_depth(block: Block) -> tuple[str, int]:
    """The checkpoint from which all training started, and the number of trainings since."""
    chain = trainings(block.model.lineage)
    return (base_of(chain[0]) if chain else block.model.name), len(chain)


def _name(block: Block, details: Sequence[Details]) -> str:
    chain = trainings(block.model.lineage)
    return training_chain(chain, [list(training.values()) for training in details]) if chain else block.model.name


def _details(training: LineageRecord) -> Details:
    """The details of a training in words, by name."""
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


def _distinguishing(chains: Sequence[list[Details]]) -> list[list[Details]]:
    """The fewest details of each checkpoint that distinguish all of them, in their order."""
    places = dict.fromkeys((at, name) for chain in chains for at, details in enumerate(chain) for name in details)
    values: list[tuple[str | None, ...]] = [()] * len(chains)
    chosen: list[tuple[int, str]] = []
    for at, name in places:
        extended = [(*old, chain[at].get(name)) for old, chain in zip(values, chains, strict=True)]
        if len(set(extended)) > len(set(values)):
            values = extended
            chosen.append((at, name))
    return [
        [{n: details[n] for place, n in chosen if place == at and n in details} for at, details in enumerate(chain)]
        for chain in chains
    ]


def settings_texts(rows: Sequence[Sequence[Run]]) -> list[str]:
    """For each row (its runs) the settings that differ from another row's; empty where none do."""
    blocks = [run.block for row in rows for run in row if run.block is not None]
    decoding = dict.fromkeys(name for block in blocks for name in block.decoding_requested)
    likelihood = dict.fromkeys(name for block in blocks for task in block.tasks.values() for name in task.likelihood)
    by_row = [_settings(row, decoding, likelihood) for row in rows]
    texts = []
    for row in by_row:
        differing = [
            f"{name} {value}"
            for name, value in row.items()
            if value not in (None, UNKNOWN) and any(name in other and other[name] != value for other in by_row)
        ]
        texts.append(", ".join(differing))
    return texts


def _settings(runs: Sequence[Run], decoding: Iterable[str], likelihood: Iterable[str]) -> dict[str, Any]:
    blocks = [run.block for run in runs if run.block is not None]
    results, first = runs[0].results, blocks[0]
    tasks = [task for block in blocks for task in block.tasks.values()]
    settings: dict[str, Any] = {}
    for names, of_tasks in ((decoding, [t.decoding for t in tasks]), (likelihood, [t.likelihood for t in tasks])):
        for name in names:
            values = [task[name] for task in of_tasks if name in task]
            if values:
                settings[name] = values[0] if all(value == values[0] for value in values) else "by task"
    settings |= {"dtype": first.model.dtype, **opened_with(results)}
    settings |= {"harness": first.harness.name, "answers to each prompt": first.repeats}
    settings |= dict(zip(_SEEDS, first.seeds or (None,) * len(_SEEDS), strict=True))
    template = results.get("chat_template_sha")
    settings["chat template"] = str(template)[:8] if template else "not applied"
    if template:
        settings["examples as turns"] = results.get("fewshot_as_multiturn")
    return settings
