"""What nodes are called: what they are, then what varies in the sweep; a hash only where two would be called the same.

A node has two names. Its *key* spells out every setting that is not its default, so it stays the same whatever else the
file names, and a folder's nodes are found again by it. Its *name* is for people, and its place in the folder: it shows
only what varies among the nodes of its sweep at the time when the node was first seen.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.sweeps.entries import PlannedEvaluation, PlannedTraining

LONGEST = 120
"""Characters of one part of a node's name; what is longer is cut and ends in a hash."""
SPELLED = 3
"""Tasks of an evaluation that its name spells out; of more, the first and their number."""
_NO_IDENTITY = frozenset(
    {"limit", "samples", "max_rows", "log_samples", "data_dir", "include_path", "device", "unsafe_no_sandbox", "tasks",
     "recipe"}
)  # fmt: skip
"""Evaluation settings that do not name a node: they change no run's identity, or are told otherwise."""


def train_key(training: PlannedTraining) -> str:
    """A training by all its settings."""
    spec = training.spec
    data = spec.task if spec.task is not None else f"{_source(training)}-{fingerprint.digest(spec.data, 4)}"
    return f"train/{label([training.base.name, spec.method, data], training.settings)}"


def train_names(planned: Sequence[PlannedTraining], bases: Collection[str]) -> dict[str, str]:
    """Key -> name of every training: base, method, the data where they vary, and the settings that vary among the
    trainings of one method and data. ``bases``: names that checkpoints have already."""
    alike: dict[tuple[str, str], list[PlannedTraining]] = defaultdict(list)
    for training in planned:
        alike[training.spec.method, _source(training)].append(training)
    wanted = {}
    for (method, source), trainings in alike.items():
        shown = varying([training.settings for training in trainings])
        for training in trainings:
            words = [training.base.name, method, *([source] if len({source for _, source in alike}) > 1 else [])]
            wanted[train_key(training)] = f"train/{label(words, _only(training.settings, shown))}"
    return apart(wanted, [f"train/{name}" for name in bases])


def _source(training: PlannedTraining) -> str:
    return training.spec.task if training.spec.task is not None else Path(training.spec.data or "").stem


def eval_key(evaluation: PlannedEvaluation) -> str:
    """An evaluation by the name that was given, or by its tasks and all its settings."""
    if evaluation.name:
        return label([evaluation.name], {})
    return label(["+".join(_tasks(evaluation))], _settings(evaluation))


def eval_names(planned: Sequence[PlannedEvaluation]) -> dict[str, str]:
    """Key -> name of every evaluation: the one given, or its tasks, and the settings that vary among evaluations of the
    same tasks."""
    alike: dict[str, list[PlannedEvaluation]] = defaultdict(list)
    for evaluation in planned:
        tasks = _tasks(evaluation)
        many = len(tasks) > SPELLED
        alike[evaluation.name or (f"{tasks[0]}+{len(tasks) - 1}-more" if many else "+".join(tasks))].append(evaluation)
    wanted = {}
    for words, evaluations in alike.items():
        shown = varying([_settings(evaluation) for evaluation in evaluations])
        for evaluation in evaluations:
            varied = {} if evaluation.name else _only(_settings(evaluation), shown)
            wanted[eval_key(evaluation)] = label([words], varied)
    return apart(wanted)


def _tasks(evaluation: PlannedEvaluation) -> list[str]:
    return str(evaluation.fields.get("tasks") or evaluation.fields.get("recipe")).split(",")


def _settings(evaluation: PlannedEvaluation) -> dict[str, Any]:
    """The settings that name an evaluation, those of nested mappings beside the others."""
    flat: dict[str, Any] = {}
    for key, value in evaluation.fields.items():
        if key not in _NO_IDENTITY:
            flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


def varying(settings: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The settings that do not have one value everywhere; one that is not given is a value, too."""
    names = {name for point in settings for name in point}
    return frozenset(name for name in names if len({repr(point.get(name)) for point in settings}) > 1)


def _only(settings: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in names}


def apart(wanted: Mapping[str, str], used: Collection[str] = ()) -> dict[str, str]:
    """Key -> name; a name that several keys want, or that is in use, is followed by a hash of its key."""
    counts = Counter([*wanted.values(), *used])
    return {key: name if counts[name] == 1 else suffixed(name, key) for key, name in wanted.items()}


def suffixed(name: str, key: str) -> str:
    """A name with a short hash of its key behind it."""
    return f"{name}-{fingerprint.digest(key, 6)}"


def label(words: Sequence[str | None], settings: Mapping[str, Any]) -> str:
    """Words and ``name=value`` by hyphens, as one part of a path: at most ``LONGEST`` characters. A hash stands for
    what is cut, and for letters that are left out."""
    parts = [str(word) for word in words] + [f"{name}={_shown(value)}" for name, value in settings.items()]
    whole = "-".join(parts)
    clean = re.sub(r"[^A-Za-z0-9._=+]+", "-", whole).strip("-._")
    if len(clean) <= LONGEST and clean and whole.isascii():
        return clean
    return f"{clean[: LONGEST - 9].rstrip('-._')}-{fingerprint.digest(whole, 8)}".lstrip("-")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return fingerprint.digest(value, 6)
    if isinstance(value, list | tuple):
        return "+".join(map(_shown, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
