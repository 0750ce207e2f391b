"""The graph of a sweep: nodes train -> eval -> board with keys that stay the same when the file grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import UsageError
from dare_bench.sweeps.entries import Evaluation, Training, evaluations, trainings
from dare_bench.sweeps.grid import bounded
from dare_bench.sweeps.names import eval_key, eval_names, suffixed, train_key, train_names
from dare_bench.sweeps.spec import Checkpoint, SweepSpec

Kind = Literal["train", "eval", "board"]
BOARD = "board"


@dataclass(frozen=True)
class Node:
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
    def read(cls, plain: Mapping[str, Any]) -> Node:
        return cls(**{**plain, "after": tuple(plain["after"])})

    def place(self, out: Path) -> Path:
        """Where its result lies: a checkpoint's folder, all runs, the site."""
        return {"train": out / self.id, "eval": out / "runs", "board": out / "site"}[self.kind]


def graph(spec: SweepSpec) -> list[Node]:
    """The nodes of a sweep, each behind those it needs, by the names that they have in a fresh folder.

    Raises:
        UsageError: what :func:`~dare_bench.sweeps.entries.trainings` and ``evaluations`` refuse; two evaluations of one
            name.
    """
    made, asked = trainings(spec), _keyed(evaluations(spec))
    each = {base.name: sum(_meant(one, base) for _, one in asked) for base in spec.models}
    bases = sum(each.values()) if spec.base or not made else 0
    bounded(bases + sum(1 + each[training.base.name] for training in made), spec.name, "nodes")
    nodes: list[Node] = []
    if spec.base or not made:
        for base in spec.models:
            chosen = [(name, one) for name, one in asked if _meant(one, base)]
            nodes += [_eval(base.name, base.opening(), name, one, base.name) for name, one in chosen]
    for training in made:
        node = Node(train_key(training), "train", _asked(training), about=training.base.name)
        nodes.append(node)
        opening = {k: v for k, v in training.base.opening().items() if k not in ("model", "adapter")}
        for name, one in asked:
            if _meant(one, training.base):
                nodes.append(_eval(node.id.partition("/")[2], opening, name, one, training.base.name, node))
    if spec.board is not False:
        about = spec.board.model_dump(exclude_none=True)
        about = about if "board" in about else {"title": spec.name, "tasks": "all", **about}
        nodes.append(Node(BOARD, "board", about, tuple(node.id for node in nodes if node.kind == "eval")))
    _all_different(nodes)
    trained = train_names(made, [base.name for base in spec.models])
    names = _shown(nodes, trained, eval_names([one for _, one in asked]))
    return _renamed([replace(node, key=node.id) for node in nodes], names)


def _eval(
    subject: str, opening: Mapping[str, Any], name: str, one: Evaluation, about: str, train: Node | None = None
) -> Node:
    after = (train.id,) if train is not None else ()
    asked = {**opening, **one.fields}
    return Node(f"eval/{subject}/{name}", "eval", asked, after, train.id if train is not None else None, about)


def _meant(one: Evaluation, base: Checkpoint) -> bool:
    return not one.models or bool({base.model, base.name} & set(one.models))


def _asked(training: Training) -> dict[str, Any]:
    """What was asked, without defaults: a setting that a later version adds changes no finished node."""
    return training.spec.model_dump(mode="json", exclude_defaults=True, exclude={"output_path", "device"})


def _keyed(asked: Sequence[Evaluation]) -> list[tuple[str, Evaluation]]:
    """Evaluations with their keys; raises UsageError where two have the same."""
    keyed: dict[str, Evaluation] = {}
    for one in asked:
        if (before := keyed.setdefault(key := eval_key(one), one)) is not one:
            both = f"{before.where} and {one.where}" if before.where != one.where else f"two of {one.where}"
            raise UsageError(f"{both} are called {key!r}; give each mapping a name of its own (name: ...)")
    return list(keyed.items())


def _shown(nodes: Sequence[Node], trained: Mapping[str, str], evaluated: Mapping[str, str]) -> dict[str, str]:
    """Key -> name of every node, by the names of trainings and of evaluations."""
    names = {}
    for node in nodes:
        kind, _, rest = node.id.partition("/")
        if kind == "eval":
            subject, _, one = rest.rpartition("/")
            subject = _checkpoint(trained[node.of]) if node.of is not None else subject
            names[node.id] = f"eval/{subject}/{evaluated[one]}"
        else:
            names[node.id] = trained.get(node.id, node.id)
    return names


def _checkpoint(train: str) -> str:
    """What a training's checkpoint is called."""
    return train.partition("/")[2]


def _renamed(nodes: Sequence[Node], names: Mapping[str, str]) -> list[Node]:
    return [
        replace(
            node,
            id=names[node.id],
            after=tuple(names[name] for name in node.after),
            of=names[node.of] if node.of is not None else None,
        )
        for node in nodes
    ]


def settle(nodes: Sequence[Node], there: Mapping[str, str]) -> list[Node]:
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


def _all_different(nodes: Sequence[Node]) -> None:
    counts = Counter(node.id for node in nodes)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UsageError(f"two nodes are called {twice!r}: they differ in what names do not show; keep one of them")
