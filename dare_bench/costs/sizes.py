"""How large things are: a checkpoint by the headers of its files, training rows by reading some of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dare_bench.checkpoint_files import read_config, read_header
from dare_bench.errors import DareError
from dare_bench.loading import family_of, here
from dare_bench.protocols import LoadedModel
from dare_bench.reading import existing
from dare_bench.registry import registry
from dare_bench.training.rows import Example, Kind, PreferencePair
from dare_bench.training.spec import TrainSpec
from dare_bench.training.tokens import tokenise

LOOKED_AT = 256
"""Rows whose length is taken for that of all."""
CHARACTERS = 3.5
"""Of a token, where the tokenizer is not asked: English text and code by vocabularies of today."""
UNKNOWN_TOKENS = 512.0
UNKNOWN_ROWS = 10_000


@dataclass
class CheckpointSize:
    """``parameters`` of all weights, ``active`` that a token uses; None where the checkpoint is not on this machine."""

    parameters: float | None = None
    active: float | None = None
    two_copies: bool = False
    seconds_per_forward: float | None = None
    """Of one row, as measured on this machine."""
    model: LoadedModel | None = None
    """The checkpoint, where it was opened: whole, or as far as it tokenizes."""


@dataclass(frozen=True)
class TrainingRows:
    """``count`` items of ``of_item`` rows each (a preference pair is two), of ``tokens`` in the mean."""

    count: int
    of_item: int
    tokens: float
    source: str


def size_of(model: str, family: str | None = None) -> CheckpointSize:
    """The size of a checkpoint; nothing is fetched for it, and no weight is read. Raises CheckpointError."""
    if (folder := here(model)) is None:
        return CheckpointSize()
    files = sorted(folder.glob("*.safetensors"))
    counts = {name: math.prod(tensor.shape) for file in files for name, tensor in read_header(file).items()}
    config = read_config(folder)
    share = 1.0
    chosen, experts = config.get("num_experts_per_tok"), config.get("num_experts")
    if isinstance(chosen, int) and isinstance(experts, int) and experts:
        share = chosen / experts
    total = float(sum(counts.values()))
    routed = float(sum(count for name, count in counts.items() if ".experts." in name))
    return CheckpointSize(total, total - routed * (1 - share), _has_blocks(folder, family, config))


def tokenizing(model: str, family: str | None = None) -> LoadedModel | None:
    """A checkpoint as far as it tokenizes, its weights unread; None where it is not on this machine, or its family is
    of another kind. Raises CheckpointError."""
    if (folder := here(model)) is None:
        return None
    opener = family_of(folder, family).load()
    opened: LoadedModel | None = (
        opener.open(folder, device="cpu", weights=False) if hasattr(opener, "arch_of") else None
    )
    return opened


def _has_blocks(folder: Path, family: str | None, config: dict[str, Any]) -> bool:
    """Does the network attend block-causally (and so train on two copies of a row)? By its family, from config.json;
    a family of another kind is taken as one that does not."""
    arch_of = getattr(family_of(folder, family).load(), "arch_of", None)
    return arch_of is not None and arch_of(config)[1].block_length is not None


def rows_of(spec: TrainSpec, model: LoadedModel | None = None) -> TrainingRows:
    """How many rows a training has and how long they are, by reading some (all, where epochs are counted).

    Args:
        model: the checkpoint, where it is at hand: rows are then tokenized as the training does it, with its chat
            template. Else tokens are taken from the length of the text.

    Raises:
        DataError: the training would refuse these rows.
    """
    kind: Kind = getattr(registry().get("trainer", spec.method).load(), "reads", "examples")
    of_item = 2 if kind == "pairs" else 1
    limit = float(spec.max_length or 10**9)
    local = spec.task is not None or existing(spec.data or "") is not None
    if not local:
        tokens = min(UNKNOWN_TOKENS, limit)
        return TrainingRows(spec.rows or UNKNOWN_ROWS, of_item, tokens, "not looked at: taken")
    from dare_bench.training.data import read_data

    few = min(spec.rows or LOOKED_AT, LOOKED_AT)
    wanted = spec if spec.max_steps is None else spec.model_copy(update={"rows": few})
    try:
        data = read_data(wanted, kind)
    except DareError as error:
        return TrainingRows(spec.rows or UNKNOWN_ROWS, of_item, min(UNKNOWN_TOKENS, limit), f"taken, since: {error}")
    looked = data.rows[:LOOKED_AT]
    if model is None:
        lengths = [min(_characters(row) / CHARACTERS, limit) for row in looked]
        source = f"characters / {CHARACTERS:g}, without the chat template"
        return TrainingRows(len(data.rows), of_item, sum(lengths) / len(lengths), source)
    items = tokenise(replace(data, rows=looked), model, spec).items
    tokens = sum(len(row.prompt) + len(row.answer) for rows in items for row in rows) / sum(map(len, items))
    kept = round(len(data.rows) * len(items) / len(looked))  # the others are longer than the training takes
    return TrainingRows(kept, of_item, tokens, "its tokenizer")


def _characters(row: Any) -> float:
    """Characters of one of an item's rows."""
    said = len(row.prompt) if isinstance(row.prompt, str) else sum(len(turn["content"]) for turn in row.prompt)
    if isinstance(row, PreferencePair):
        return said + (len(row.chosen) + len(row.rejected)) / 2
    return said + len(row.answer if isinstance(row, Example) else row.truth)
