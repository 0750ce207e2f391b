"""Names of nodes: what a node is, then the settings that vary in the sweep, and a hash only where names would be equal.

A node has two names. Its *key* spells out every setting that is not its default, so it does not depend on the rest of
the file and identifies the node in a folder. Its *name* is for people, and is its path in the folder: it shows only
what varied among the nodes of its sweep when the node was first planned.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.sweeps.planning import PlannedEvaluation, PlannedTraining, with_first_names

LONGEST = 120
"""Maximum length of one part of a name in characters; longer ones are cut and end in a hash."""
SPELLED = 3
"""Maximum number of tasks in the name of an evaluation; of more, the first and their number."""
_NO_IDENTITY = frozenset(
    {"limit", "samples", "max_rows", "log_samples", "data_dir", "include_path", "device", "unsafe_no_sandbox", "tasks",
     "recipe"}
)  # fmt: skip
"""Evaluation settings that are not in the name of a node: they do not change the identity of a run, or have a fixed
position in the name."""


def train_key(training: PlannedTraining) -> str:
    """A training by all its settings."""
    spec = training.spec
    data = spec.task if spec.task is not None else f"{_source(training)}-{fingerprint.digest(spec.data, 4)}"
    return f"train/{label([training.base.name, spec.method, data], with_first_names(training.settings))}"


def train_names(planned: Sequence[PlannedTraining], bases: Collection[str]) -> dict[str, str]:
    """Key -> name of every training: base, method, the data if they vary, and the settings that vary among the
    trainings of one method and data. ``bases``: names that checkpoints have already."""
    groups: dict[tuple[str, str], list[PlannedTraining]] = defaultdict(list)
    for training in planned:
        groups[training.spec.method, _source(training)].append(training)
    names = {}
    for (method, source), trainings in groups.items():
        prefix = [method, source] if len({source for _, source in groups}) > 1 else [method]
        for training, settings in zip(trainings, _varying([item.settings for item in trainings]), strict=True):
            names[train_key(training)] = f"train/{label([training.base.name, *prefix], settings)}"
    return _distinct(names, [f"train/{name}" for name in bases])


def _source(training: PlannedTraining) -> str:
    return training.spec.task if training.spec.task is not None else Path(training.spec.data or "").stem


def eval_key(evaluation: PlannedEvaluation) -> str:
    """The name of an evaluation in the file, or its tasks and all its settings."""
    if evaluation.name:
        return label([evaluation.name], {})
    return label(["+".join(_tasks(evaluation))], _settings(evaluation))


def eval_names(planned: Sequence[PlannedEvaluation]) -> dict[str, str]:
    """Key -> name of every evaluation: its name in the file, or its tasks and the settings that vary among evaluations
    of the same tasks."""
    groups: dict[str, list[PlannedEvaluation]] = defaultdict(list)
    for evaluation in planned:
        tasks = _tasks(evaluation)
        shortened = f"{tasks[0]}+{len(tasks) - 1}-more" if len(tasks) > SPELLED else "+".join(tasks)
        groups[evaluation.name or shortened].append(evaluation)
    names = {}
    for prefix, evaluations in groups.items():
        for evaluation, settings in zip(evaluations, _varying(list(map(_settings, evaluations))), strict=True):
            names[eval_key(evaluation)] = label([prefix], {} if evaluation.name else settings)
    return _distinct(names)


def _tasks(evaluation: PlannedEvaluation) -> list[str]:
    return str(evaluation.fields.get("tasks") or evaluation.fields.get("recipe")).split(",")


def _settings(evaluation: PlannedEvaluation) -> dict[str, Any]:
    """The settings in the name of an evaluation, those of nested mappings next to the others."""
    flat: dict[str, Any] = {}
    for key, value in evaluation.fields.items():
        if key not in _NO_IDENTITY:
            flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


def _varying(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The settings of each point that do not have the same value at all points; a missing setting is a value, too."""
    names = {name for point in points for name in point}
    vary = {name for name in names if len({repr(point.get(name)) for point in points}) > 1}
    return [{name: value for name, value in point.items() if name in vary} for point in points]


def _distinct(names: Mapping[str, str], used: Collection[str] = ()) -> dict[str, str]:
    """Key -> name; a name of several keys, or one in use, is followed by a hash of its key."""
    counts = Counter([*names.values(), *used])
    return {key: name if counts[name] == 1 else suffixed(name, key) for key, name in names.items()}


def suffixed(name: str, key: str) -> str:
    """A name followed by a short hash of its key."""
    return f"{name}-{fingerprint.digest(key, 6)}"


def label(parts: Sequence[str | None], settings: Mapping[str, Any]) -> str:
    """The parts and ``name=value`` joined by hyphens, as one part of a path of at most ``LONGEST`` characters. If text
    is cut or characters are replaced by others than ASCII, a hash follows."""
    text = "-".join([*map(str, parts), *(f"{name}={_value(value)}" for name, value in settings.items())])
    clean = re.sub(r"[^A-Za-z0-9._=+]+", "-", text).strip("-._")
    if len(clean) <= LONGEST and clean and text.isascii():
        return clean
    return f"{clean[: LONGEST - 9].rstrip('-._')}-{fingerprint.digest(text, 8)}".lstrip("-")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return fingerprint.digest(value, 6)
    if isinstance(value, list | tuple):
        return "+".join(map(_value, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
