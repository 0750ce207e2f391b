"""The origin of a trained checkpoint: ``lineage.json`` next to its weights.

It is written last, so a folder that has it is complete; an evaluation copies it into its run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, TypeAdapter, ValidationError

from dare_bench.errors import CheckpointError
from dare_bench.reading import read_json
from dare_bench.runs.writer import atomic_write_json
from dare_bench.version import __version__

FILE = "lineage.json"


class Lineage(BaseModel):
    """Base, method, data and steps of a training; ``parents`` are the lineages of its base, the earliest first.

    ``forwards`` are the forward passes of the training up to ``step`` in all processes, by phase, counted per row (a
    forward of four rows is four): ``rollout`` of the sampler, ``score`` without gradients, ``update`` with the backward
    that follows. ``tokens`` are those that the network read in them. Both are None where they were not counted.
    ``sequence_parallel_size`` is the number of processes that computed the same rows together. ``canvas_lengths`` are
    the shortest and the longest response that was learned, in tokens, if the model decodes on a canvas of fixed length.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    base: str
    base_content: str
    base_adapter: str | None = None
    method: str
    options: dict[str, Any] = Field(default_factory=dict)
    peft: str | None = None
    data: str
    data_hash: str
    step: int
    steps: int
    seed: int
    forwards: dict[str, int] | None = None
    tokens: dict[str, int] | None = None
    sequence_parallel_size: int = 1
    canvas_lengths: tuple[int, int] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    version: str = __version__
    parents: tuple[dict[str, Any], ...] = ()


def write(folder: Path, lineage: Lineage) -> None:
    """Write ``lineage`` into a checkpoint folder; raises SaveError."""
    atomic_write_json(folder / FILE, lineage.model_dump(mode="json"))


def read(folder: Path | None) -> dict[str, Any] | None:
    """The lineage of a checkpoint folder, if any; raises CheckpointError."""
    if folder is None or not os.path.lexists(folder / FILE):
        return None
    record = read_json(folder / FILE, CheckpointError)
    parents = record.get("parents", [])
    if not isinstance(parents, list) or not all(isinstance(parent, dict) for parent in parents):
        raise CheckpointError(
            f"{folder / FILE} is damaged: parents must be a list of lineages; remove it, or restore it"
        )
    return record


def counts(record: Mapping[str, Any]) -> dict[str, dict[str, int]] | None:
    """``forwards`` and ``tokens`` of a lineage by phase, None unless it has both."""
    result = {name: record.get(name) for name in ("forwards", "tokens")}
    try:
        return TypeAdapter(dict[str, dict[str, NonNegativeInt]]).validate_python(result)
    except ValidationError:
        return None
