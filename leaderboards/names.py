"""Short and unique names for checkpoints that stand side by side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import made_from, trainings
from dare_bench.leaderboards.formatting import plain_value
from dare_bench.runs.text import one_line

_MOST = 4
"""Maximum number of differing settings in a name."""

Checkpoint = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Name:
    """``title``: the checkpoint, or its base and trainings if it was trained here. ``detail``: data, seed, step."""

    title: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.title}, {self.detail}" if self.detail else self.title


def names(checkpoints: Iterable[tuple[Checkpoint, Mapping[str, Any] | None]]) -> dict[Checkpoint, Name]:
    """A name for each checkpoint from its lineage, or without one the name that it was evaluated under (the first of
    its parts). Checkpoints with the same name are distinguished by the settings in which they differ."""
    result: dict[Checkpoint, Name] = {}
    same_name: dict[Name, dict[Checkpoint, Mapping[str, Any]]] = defaultdict(dict)
    for checkpoint, lineage in checkpoints:
        if lineage is not None and trainings(lineage):
            result[checkpoint] = _name(lineage)
            same_name[result[checkpoint]][checkpoint] = lineage
        else:
            result[checkpoint] = Name(checkpoint[0])
    for name, lineages in same_name.items():
        if len(lineages) > 1:
            result |= _distinguished(name, lineages)
    return result


def training_settings(training: Mapping[str, Any]) -> dict[str, Any]:
    """The settings and options of one training."""
    parts = (training.get("settings"), training.get("options"))
    return {name: value for part in parts if isinstance(part, dict) for name, value in part.items()}


def differences(settings: Sequence[Mapping[str, str]]) -> list[str]:
    """For each of several settings the values (at most four) in which they differ: "rows 600, seed 1"."""
    keys = dict.fromkeys(key for own in settings for key in own)
    differing = [key for key in keys if len({own.get(key) for own in settings}) > 1][:_MOST]
    return [", ".join(f"{key.rpartition('.')[2]} {own.get(key, '–')}" for key in differing) for own in settings]


def _name(lineage: Mapping[str, Any]) -> Name:
    facts = [("", lineage.get("data")), ("seed ", lineage.get("seed")), ("step ", lineage.get("step"))]
    detail = ", ".join(f"{word}{value}" for word, value in facts if value is not None)
    return Name(made_from(trainings(lineage)), detail)


def _distinguished(name: Name, lineages: Mapping[Checkpoint, Mapping[str, Any]]) -> dict[Checkpoint, Name]:
    more = differences([_all_settings(lineage) for lineage in lineages.values()])
    details = [", ".join(filter(None, [name.detail, text])) for text in more]
    if len(set(details)) < len(details):  # evaluated under other names, or in another precision
        details = [f"{detail}, {_content(checkpoint)}" for detail, checkpoint in zip(details, lineages, strict=True)]
    return {checkpoint: Name(name.title, detail) for checkpoint, detail in zip(lineages, details, strict=True)}


def _content(checkpoint: Sequence[str]) -> str:
    """What distinguishes two checkpoints of one lineage: content and precision."""
    content = "+".join(part.rpartition(":")[2][:6] for part in checkpoint[1:3] if part)
    return ", ".join(filter(None, [content, *checkpoint[3:]])) or checkpoint[0]


def _all_settings(lineage: Mapping[str, Any]) -> dict[str, str]:
    """The settings of all trainings as text, by the number of the training and name; of earlier trainings also data,
    seed and step, which the name has only of the last one."""
    chain = trainings(lineage)
    result: dict[str, str] = {}
    for number, training in enumerate(chain, start=1):
        settings = training_settings(training)
        if number < len(chain):
            settings |= {key: training.get(key) for key in ("data", "seed", "step")}
        result |= {f"{number}.{key}": one_line(plain_value(value), 24) for key, value in settings.items()}
    return result
