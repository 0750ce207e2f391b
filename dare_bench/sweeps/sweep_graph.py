"""The graph of a sweep: nodes train -> eval -> board with keys that stay the same when the file grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import UsageError
from dare_bench.sweeps.grid import bounded
from dare_bench.sweeps.node_names import eval_key, eval_names, suffixed, train_key, train_names
from dare_bench.sweeps.planning import PlannedEvaluation, evaluations, trainings
from dare_bench.sweeps.sweep_spec import SweepSpec

Kind = Literal["train", "eval", "board"]
BOARD = "board"


@dataclass(frozen=True)
class SweepNode:
    """A training, an evaluation or the board.

    ``id`` is its name and its path below ``nodes/``, ``key`` identifies it when the file changes (see ``names``),
    ``settings`` are plain data. ``training`` is the id of the training whose checkpoint is evaluated (None: one of the
    sweep's models), ``model_name`` the name of the base model.
    """

    id: str
    kind: Kind
    settings: dict[str, Any]
    after: tuple[str, ...] = ()
    training: str | None = None
    model_name: str = ""
    key: str = ""

    def path(self, out: Path) -> Path:
        """The folder of the result: a checkpoint, all runs, the site."""
        return {"train": out / self.id, "eval": out / "runs", "board": out / "site"}[self.kind]


def graph(spec: SweepSpec) -> list[SweepNode]:
    """The nodes of a sweep in the order of their dependencies, with the names that they have in a new folder.

    Raises:
        UsageError: what :func:`~dare_bench.sweeps.planning.trainings` and ``evaluations`` refuse; two nodes of one
            name; too many nodes.
    """
    planned, keyed = trainings(spec), _keyed(evaluations(spec))
    selected = {
        base.name: {k: item for k, item in keyed.items() if not item.models or {base.model, base.name} & {*item.models}}
        for base in spec.models
    }
    bases = spec.models if spec.base or not planned else ()
    count = sum(1 + len(selected[item.base.name]) for item in planned) + sum(len(selected[b.name]) for b in bases)
    bounded(count, spec.name, "nodes")
    train_name = train_names(planned, [base.name for base in spec.models])
    eval_name = eval_names(list(keyed.values()))
    nodes: list[SweepNode] = []
    for base in bases:
        for key, evaluation in selected[base.name].items():
            name, settings = f"eval/{base.name}/{eval_name[key]}", {**base.opening(), **evaluation.fields}
            nodes.append(SweepNode(name, "eval", settings, model_name=base.name, key=f"eval/{base.name}/{key}"))
    for training in planned:
        # Without defaults: a setting that a later version adds changes no finished node.
        settings = training.spec.model_dump(mode="json", exclude_defaults=True, exclude={"output_path", "device"})
        base, key = training.base, train_key(training)
        node = SweepNode(train_name[key], "train", settings, model_name=base.name, key=key)
        nodes.append(node)
        opening = {name: value for name, value in base.opening().items() if name not in ("model", "adapter")}
        for eval_id, evaluation in selected[base.name].items():
            name, settings = f"eval/{_subject(node.id)}/{eval_name[eval_id]}", {**opening, **evaluation.fields}
            eval_of = f"eval/{_subject(key)}/{eval_id}"
            nodes.append(SweepNode(name, "eval", settings, (node.id,), node.id, base.name, eval_of))
    if spec.board is not False:
        board = spec.board.model_dump(exclude_none=True)
        settings = board if "board" in board else {"title": spec.name, "tasks": "all", **board}
        after = tuple(node.id for node in nodes if node.kind == "eval")
        nodes.append(SweepNode(BOARD, "board", settings, after, key=BOARD))
    if repeated := [key for key, times in Counter(node.key for node in nodes).items() if times > 1]:
        raise UsageError(f"two nodes have the name {repeated[0]!r}: their names do not show how they differ; keep one")
    return nodes


def _subject(train: str) -> str:
    """The name of a training's checkpoint in the names of its evaluations."""
    return train.removeprefix("train/")


def _keyed(planned: Sequence[PlannedEvaluation]) -> dict[str, PlannedEvaluation]:
    """Evaluations by key; raises UsageError if two have the same key."""
    keyed: dict[str, PlannedEvaluation] = {}
    for evaluation in planned:
        key = eval_key(evaluation)
        if key in keyed:
            first, second = keyed[key].where, evaluation.where
            both = f"{first} and {second}" if first != second else f"two of {second}"
            raise UsageError(f"{both} have the name {key!r}; give each mapping its own name (name: ...)")
        keyed[key] = evaluation
    return keyed


def settle(nodes: Sequence[SweepNode], existing: Mapping[str, str]) -> list[SweepNode]:
    """The nodes with the names that they already have in a folder.

    Args:
        existing: key -> name of the nodes in the folder. New nodes do not take one of these names.
    """
    used = set(existing.values())
    names: dict[str, str] = {}
    for node in nodes:
        name = node.id
        if node.training is not None:  # the training may have another name in the folder
            name = f"eval/{_subject(names[node.training])}/{node.id.rpartition('/')[2]}"
        name = existing.get(node.key) or (suffixed(name, node.key) if name in used else name)
        used.add(name)
        names[node.id] = name
    return [
        replace(
            node,
            id=names[node.id],
            after=tuple(names[name] for name in node.after),
            training=names[node.training] if node.training is not None else None,
        )
        for node in nodes
    ]
