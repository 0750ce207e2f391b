"""The graph of a sweep: nodes train -> eval -> board.

A node is named by what it is and every setting that is not its default, so that its name does not depend on the rest of
the file. It identifies the node in a folder, and is its path in it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dare_bench import fingerprint
from dare_bench.errors import UsageError
from dare_bench.sweeps.grid import bounded
from dare_bench.sweeps.planning import PlannedEvaluation, PlannedTraining, evaluations, trainings
from dare_bench.sweeps.sweep_spec import SweepSpec, label

Kind = Literal["train", "eval", "board"]
BOARD = "board"
LONGEST = 120
"""Maximum length of one part of a name in characters; longer ones have a hash in place of their middle."""
_NO_IDENTITY = frozenset(
    {"limit", "samples", "max_rows", "log_samples", "data_dir", "include_path", "device", "unsafe_no_sandbox", "tasks",
     "recipe"}
)  # fmt: skip
"""Evaluation settings that are not in the name of a node: they do not change the identity of a run, or have a fixed
position in the name."""


@dataclass(frozen=True)
class SweepNode:
    """A training, an evaluation or the board.

    ``id`` is its name and its path below ``nodes/``, ``settings`` are plain data. ``training`` is
    the id of the training whose checkpoint is evaluated (None: one of the sweep's models), ``model_name`` the name of
    the base model.
    """

    id: str
    kind: Kind
    settings: dict[str, Any]
    after: tuple[str, ...] = ()
    training: str | None = None
    model_name: str = ""

    def path(self, out: Path) -> Path:
        """The folder of the result: a checkpoint, all runs, the site."""
        return {"train": out / self.id, "eval": out / "runs", "board": out / "site"}[self.kind]


def graph(spec: SweepSpec) -> list[SweepNode]:
    """The nodes of a sweep in the order of their dependencies.

    Raises:
        UsageError: what :func:`~dare_bench.sweeps.planning.trainings` and ``evaluations`` refuse; two nodes of one
            name; too many nodes.
    """
    planned, evaluated = trainings(spec), evaluations(spec)
    selected = {base.name: [item for item in evaluated if base in item.models] for base in spec.models}
    bases = spec.models if spec.base or not planned else ()
    count = sum(1 + len(selected[item.base.name]) for item in planned) + sum(len(selected[b.name]) for b in bases)
    bounded(count, spec.name, "nodes")
    nodes: list[SweepNode] = []
    for base in bases:
        for evaluation in selected[base.name]:
            name, settings = f"eval/{base.name}/{eval_name(evaluation)}", {**base.opening(), **evaluation.fields}
            nodes.append(SweepNode(name, "eval", settings, model_name=base.name))
    for training in planned:
        # Without defaults: a setting that a later version adds changes no finished node.
        settings = training.spec.model_dump(mode="json", exclude_defaults=True, exclude={"output_path", "device"})
        base, subject = training.base, train_name(training)
        node = SweepNode(f"train/{subject}", "train", settings, model_name=base.name)
        nodes.append(node)
        opening = {name: value for name, value in base.opening().items() if name not in ("model", "adapter")}
        for evaluation in selected[base.name]:
            name, settings = f"eval/{subject}/{eval_name(evaluation)}", {**opening, **evaluation.fields}
            nodes.append(SweepNode(name, "eval", settings, (node.id,), node.id, base.name))
    if spec.board is not False:
        fields = {"title": spec.name, "tasks": "all"}
        settings = {"board": spec.board} if isinstance(spec.board, str) else {**fields, **spec.board}
        after = tuple(node.id for node in nodes if node.kind == "eval")
        nodes.append(SweepNode(BOARD, "board", settings, after))
    if repeated := [name for name, times in Counter(node.id for node in nodes).items() if times > 1]:
        raise UsageError(
            f"two nodes have the name {repeated[0]!r}: they are equal, or their names do not show how they differ; "
            "keep one, or give an evaluation another name (name: ...)"
        )
    return nodes


def train_name(training: PlannedTraining) -> str:
    """A training by all its settings."""
    spec = training.spec
    data = spec.task or f"{Path(spec.data or '').stem}-{fingerprint.digest(spec.data, 4)}"
    return _label([training.base.name, spec.method, data], training.settings)


def eval_name(evaluation: PlannedEvaluation) -> str:
    """The name of an evaluation in the file, or its tasks and all its settings."""
    if evaluation.name:
        return _label([evaluation.name], {})
    tasks = str(evaluation.fields.get("tasks") or evaluation.fields.get("recipe")).replace(",", "+")
    settings: dict[str, Any] = {}  # those of nested mappings next to the others
    for key, value in evaluation.fields.items():
        if key not in _NO_IDENTITY:
            settings |= value if isinstance(value, Mapping) else {key: value}
    return _label([tasks], settings)


def _label(parts: Sequence[str | None], settings: Mapping[str, Any]) -> str:
    """The parts and ``name=value`` joined by hyphens."""
    return label(
        "-".join([*map(str, parts), *(f"{name}={_value(value)}" for name, value in settings.items())]), LONGEST
    )


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return fingerprint.digest(value, 6)
    if isinstance(value, list | tuple):
        return "+".join(map(_value, value))
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
