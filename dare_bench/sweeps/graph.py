"""The graph of a sweep: nodes train -> eval -> board with names that stay the same when the file grows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dare_bench import fingerprint
from dare_bench.errors import UsageError
from dare_bench.sweeps.entries import Evaluation, Training, evaluations, trainings
from dare_bench.sweeps.grid import bounded
from dare_bench.sweeps.spec import Checkpoint, SweepSpec

Kind = Literal["train", "eval", "board"]
BOARD = "board"
LONGEST = 120
"""Characters of one part of a node's name; what is longer is cut and ends in a hash."""
_NO_IDENTITY = frozenset(
    {"limit", "samples", "max_rows", "log_samples", "data_dir", "include_path", "device", "unsafe_no_sandbox", "tasks",
     "recipe"}
)  # fmt: skip
"""Evaluation settings that do not name a node: they change no run's identity, or are told otherwise."""


@dataclass(frozen=True)
class Node:
    """A piece of work. ``asked`` is plain data and says all that is asked; ``of`` is the training whose checkpoint an
    evaluation is about (None: one of the sweep's models, named in ``asked``)."""

    id: str
    kind: Kind
    asked: dict[str, Any]
    after: tuple[str, ...] = ()
    of: str | None = None
    about: str = ""
    """The model's name, for people."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> Node:
        return cls(**{**plain, "after": tuple(plain["after"])})

    def place(self, out: Path) -> Path:
        """Where its result lies: a checkpoint's folder, all runs, the site."""
        return {"train": out / self.id, "eval": out / "runs", "board": out / "site"}[self.kind]


def graph(spec: SweepSpec) -> list[Node]:
    """The nodes of a sweep, each behind those it needs.

    Raises:
        UsageError: what :func:`~dare_bench.sweeps.entries.trainings` and ``evaluations`` refuse; two evaluations of one
            name.
    """
    made, asked = trainings(spec), _named(evaluations(spec))
    each = {base.name: sum(_meant(one, base) for _, one in asked) for base in spec.models}
    bases = sum(each.values()) if spec.base or not made else 0
    bounded(bases + sum(1 + each[training.base.name] for training in made), spec.name, "nodes")
    nodes: list[Node] = []
    if spec.base or not made:
        for base in spec.models:
            chosen = [(name, one) for name, one in asked if _meant(one, base)]
            nodes += [_eval(base.name, base.opening(), name, one, base.name) for name, one in chosen]
    for training in made:
        node = Node(_train_id(training), "train", _asked(training), about=training.base.name)
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
    return nodes


def behind(nodes: Iterable[Node], roots: Iterable[str]) -> set[str]:
    """The ids of ``roots`` and of all that depends on them."""
    found = set(roots)
    for node in nodes:  # each stands behind those it needs
        if found.intersection(node.after):
            found.add(node.id)
    return found


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


def _train_id(training: Training) -> str:
    spec = training.spec
    data = spec.task if spec.task is not None else f"{Path(spec.data or '').stem}-{fingerprint.digest(spec.data, 4)}"
    return f"train/{label([training.base.name, spec.method, str(data)], training.told)}"


def _named(asked: Sequence[Evaluation]) -> list[tuple[str, Evaluation]]:
    """Evaluations with their names: the one given, or tasks and settings."""
    named: dict[str, Evaluation] = {}
    for one in asked:
        words = str(one.fields.get("tasks") or one.fields.get("recipe")).split(",")
        flat: dict[str, Any] = {}
        for key, value in one.fields.items():
            if key not in _NO_IDENTITY:
                flat |= value if isinstance(value, Mapping) else {key: value}
        name = label([one.name], {}) if one.name else label(["+".join(words)], flat)
        if name in named:
            both = f"{named[name].where} and {one.where}" if named[name].where != one.where else f"two of {one.where}"
            raise UsageError(f"{both} are called {name!r}; give each mapping a name of its own (name: ...)")
        named[name] = one
    return list(named.items())


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


def _all_different(nodes: Sequence[Node]) -> None:
    counts = Counter(node.id for node in nodes)
    if twice := next((name for name, count in counts.items() if count > 1), None):
        raise UsageError(f"two nodes are called {twice!r}: they differ in what names do not show; keep one of them")
