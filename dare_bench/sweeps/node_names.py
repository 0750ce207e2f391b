"""Names of nodes: what a node is, then every setting that is not its default, so that a name does not depend on the
rest of the file. It identifies the node in a folder, and is its path in it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.sweeps.planning import PlannedEvaluation, PlannedTraining

LONGEST = 120
"""Maximum length of one part of a name in characters; longer ones are cut and end in a hash."""
_NO_IDENTITY = frozenset(
    {"limit", "samples", "max_rows", "log_samples", "data_dir", "include_path", "device", "unsafe_no_sandbox", "tasks",
     "recipe"}
)  # fmt: skip
"""Evaluation settings that are not in the name of a node: they do not change the identity of a run, or have a fixed
position in the name."""


def train_name(training: PlannedTraining) -> str:
    """A training by all its settings."""
    spec = training.spec
    data = spec.task or f"{Path(spec.data or '').stem}-{fingerprint.digest(spec.data, 4)}"
    return label([training.base.name, spec.method, data], training.settings)


def eval_name(evaluation: PlannedEvaluation) -> str:
    """The name of an evaluation in the file, or its tasks and all its settings."""
    if evaluation.name:
        return label([evaluation.name], {})
    tasks = str(evaluation.fields.get("tasks") or evaluation.fields.get("recipe")).replace(",", "+")
    settings: dict[str, Any] = {}  # those of nested mappings next to the others
    for key, value in evaluation.fields.items():
        if key not in _NO_IDENTITY:
            settings |= value if isinstance(value, Mapping) else {key: value}
    return label([tasks], settings)


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
