"""What to call a checkpoint where several stand side by side: short, and no two alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.names import made_from, trainings
from dare_bench.leaderboards.pages import plain_value
from dare_bench.runs.text import one_line

PARTS = 4
"""Differing training settings that a name tells at most."""


@dataclass(frozen=True, slots=True)
class Name:
    """``title``: the checkpoint, or for one trained here its base and how it was made. ``detail``: data, seed, step."""

    title: str
    detail: str = ""

    @property
    def text(self) -> str:
        return f"{self.title}, {self.detail}" if self.detail else self.title


Checkpoint = tuple[str, ...]


def names(checkpoints: Iterable[tuple[Checkpoint, Mapping[str, Any] | None]]) -> dict[Checkpoint, Name]:
    """A name for each checkpoint from its lineage; without one it keeps the name that it was evaluated under (the first
    of its parts). Checkpoints that would be called alike are told apart by the settings in which they differ."""
    made: dict[Checkpoint, Name] = {}
    alike: dict[Name, dict[Checkpoint, Mapping[str, Any]]] = defaultdict(dict)
    for checkpoint, lineage in checkpoints:
        if lineage is not None and trainings(lineage):
            made[checkpoint] = _name(lineage)
            alike[made[checkpoint]][checkpoint] = lineage
        else:
            made[checkpoint] = Name(checkpoint[0])
    for name, several in alike.items():
        if len(several) > 1:
            made |= _apart(name, several)
    return made


def _name(lineage: Mapping[str, Any]) -> Name:
    told = [("", lineage.get("data")), ("seed ", lineage.get("seed")), ("step ", lineage.get("step"))]
    return Name(made_from(trainings(lineage)), ", ".join(f"{word}{value}" for word, value in told if value is not None))


def _apart(name: Name, several: Mapping[Checkpoint, Mapping[str, Any]]) -> dict[Checkpoint, Name]:
    flat = {checkpoint: _settings(lineage) for checkpoint, lineage in several.items()}
    keys = dict.fromkeys(key for settings in flat.values() for key in settings)
    differing = [key for key in keys if len({settings.get(key) for settings in flat.values()}) > 1][:PARTS]
    made = {}
    for checkpoint, settings in flat.items():
        more = [f"{key.rpartition('.')[2]} {settings.get(key, '–')}" for key in differing]
        made[checkpoint] = Name(name.title, ", ".join(filter(None, [name.detail, *more])))
    if len(set(made.values())) < len(made):  # evaluated under other names, or in another precision
        return {checkpoint: Name(name.title, f"{made[checkpoint].detail}, {_rest(checkpoint)}") for checkpoint in made}
    return made


def _rest(checkpoint: Sequence[str]) -> str:
    """What tells two checkpoints of one lineage apart: content, precision."""
    content = "+".join(part.rpartition(":")[2][:6] for part in checkpoint[1:3] if part)
    return ", ".join(filter(None, [content, *checkpoint[3:]])) or checkpoint[0]


def _settings(lineage: Mapping[str, Any]) -> dict[str, str]:
    """Settings and options of all trainings, by number and name, as text; what only says where or when is left out."""
    found = {}
    for number, training in enumerate(trainings(lineage)):
        for part in ("settings", "options"):
            values = training.get(part)
            for key, value in (values if isinstance(values, dict) else {}).items():
                found[f"{number}.{key}"] = one_line(plain_value(value), 24)
        if number + 1 < len(trainings(lineage)):
            found |= {
                f"{number}.{key}": one_line(plain_value(training.get(key)), 24) for key in ("data", "seed", "step")
            }
    return found
