"""The graph of a sweep: nodes train -> eval -> board with keys that stay the same when the file grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import UsageError
from dare_bench.sweeps.entries import PlannedEvaluation, PlannedTraining, evaluations, trainings
from dare_bench.sweeps.grid import bounded
from dare_bench.sweeps.names import eval_key, eval_names, suffixed, train_key, train_names
from dare_bench.sweeps.spec import SweepModel, SweepSpec

Kind = Literal["train", "eval", "board"]
BOARD = "board"


@dataclass(frozen=True)
class SweepNode:
    """A piece of work. ``id`` is its name and its place in a folder, ``key`` what it is found again by (``names``).
    ``asked`` is plain data and says all that is asked; ``of`` is the training whose checkpoint an evaluation is about
    (None: one of the sweep's models, named in ``asked``)."""

    id: str
    kind: Kind
    asked: dict[str, Any]
    after: tuple[str, ...] = ()
    of: str | None = None
    about: str = ""
    """The model's name, for people."""
    key: str = ""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> SweepNode:
        return cls(**{**plain, "after": tuple(plain["after"])})

    def place(self, out: Path) -> Path:
        """Where its result lies: a checkpoint's folder, all runs, the site."""
        return {"train": out / self.id, "eval": out / "runs", "board": out / "site"}[self.kind]


def graph(spec: SweepSpec) -> list[SweepNode]:
    """The nodes of a sweep, each behind those it needs, by the names that they have in a fresh folder.

    Raises:
        UsageError: what :func:`~dare_bench.sweeps.entries.trainings` and ``evaluations`` refuse; two evaluations of one
            name.
    """
    planned, keyed = trainings(spec), _keyed(evaluations(spec))
    each = {base.name: _meant_for(base, keyed) for base in spec.models}
    with_bases = spec.base or not planned
    count = sum(1 + len(each[training.base.name]) for training in planned)
    count += sum(map(len, each.values())) if with_bases else 0
    bounded(count, spec.name, "nodes")
    nodes: list[SweepNode] = []
    for base in spec.models if with_bases else ():
        nodes += [_eval(base.name, base.opening(), *named, base.name) for named in each[base.name]]
    for training in planned:
        node = SweepNode(train_key(training), "train", _asked(training), about=training.base.name)
        opening = {k: v for k, v in training.base.opening().items() if k not in ("model", "adapter")}
        subject = node.id.partition("/")[2]
        nodes += [node, *(_eval(subject, opening, *named, node.about, node) for named in each[training.base.name])]
    if spec.board is not False:
        about = spec.board.model_dump(exclude_none=True)
        about = about if "board" in about else {"title": spec.name, "tasks": "all", **about}
        nodes.append(SweepNode(BOARD, "board", about, tuple(node.id for node in nodes if node.kind == "eval")))
    _all_different(nodes)
    trained = train_names(planned, [base.name for base in spec.models])
    names = _shown(nodes, trained, eval_names([evaluation for _, evaluation in keyed]))
    return _renamed([replace(node, key=node.id) for node in nodes], names)


def _eval(
    subject: str,
    opening: Mapping[str, Any],
    key: str,
    evaluation: PlannedEvaluation,
    about: str,
    train: SweepNode | None = None,
) -> SweepNode:
    after = (train.id,) if train is not None else ()
    asked = {**opening, **evaluation.fields}
    return SweepNode(f"eval/{subject}/{key}", "eval", asked, after, train.id if train is not None else None, about)


def _meant_for(base: SweepModel, keyed: Sequence[tuple[str, PlannedEvaluation]]) -> list[tuple[str, PlannedEvaluation]]:
    """The evaluations of a model: those that name it, and those that name none."""
    return [(k, item) for k, item in keyed if not item.models or {base.model, base.name} & set(item.models)]


def _asked(training: PlannedTraining) -> dict[str, Any]:
    """What was asked, without defaults: a setting that a later version adds changes no finished node."""
    return training.spec.model_dump(mode="json", exclude_defaults=True, exclude={"output_path", "device"})


def _keyed(planned: Sequence[PlannedEvaluation]) -> list[tuple[str, PlannedEvaluation]]:
    """Evaluations with their keys; raises UsageError where two have the same."""
    keyed: dict[str, PlannedEvaluation] = {}
    for evaluation in planned:
        if (before := keyed.setdefault(key := eval_key(evaluation), evaluation)) is not evaluation:
            both = (
                f"{before.where} and {evaluation.where}"
                if before.where != evaluation.where
                else f"two of {evaluation.where}"
            )
            raise UsageError(f"{both} are called {key!r}; give each mapping a name of its own (name: ...)")
    return list(keyed.items())


def _shown(nodes: Sequence[SweepNode], trained: Mapping[str, str], evaluated: Mapping[str, str]) -> dict[str, str]:
    """Key -> name of every node, by the names of trainings and of evaluations."""
    names = {}
    for node in nodes:
        kind, _, rest = node.id.partition("/")
        if kind == "eval":
            subject, _, key = rest.rpartition("/")
            subject = _checkpoint(trained[node.of]) if node.of is not None else subject
            names[node.id] = f"eval/{subject}/{evaluated[key]}"
        else:
            names[node.id] = trained.get(node.id, node.id)
    return names


def _checkpoint(train: str) -> str:
    """What a training's checkpoint is called."""
    return train.partition("/")[2]


def _renamed(nodes: Sequence[SweepNode], names: Mapping[str, str]) -> list[SweepNode]:
    return [
        replace(
            node,
            id=names[node.id],
            after=tuple(names[name] for name in node.after),
            of=names[node.of] if node.of is not None else None,
        )
        for node in nodes
    ]


def settle(nodes: Sequence[SweepNode], there: Mapping[str, str]) -> list[SweepNode]:
    """The nodes by the names that they have in a folder already.

    Args:
        there: key -> name of the nodes in the folder. What is new there keeps clear of those names.
    """
    used = set(there.values())
    names: dict[str, str] = {}
    for node in nodes:
        name = node.id
        if node.kind == "eval" and node.of is not None:  # its training may have another name there
            name = f"eval/{_checkpoint(names[node.of])}/{node.id.rpartition('/')[2]}"
        name = there.get(node.key) or (suffixed(name, node.key) if name in used else name)
        used.add(name)
        names[node.id] = name
    return _renamed(nodes, names)


def _all_different(nodes: Sequence[SweepNode]) -> None:
    counts = Counter(node.id for node in nodes)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UsageError(f"two nodes are called {twice!r}: they differ in what names do not show; keep one of them")
