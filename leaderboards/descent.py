"""Which checkpoint was made from which, as the runs tell it: trees of checkpoints, grouped by how they were trained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.analysis.names import method_of
from dare_bench.leaderboards.entries import Entry
from dare_bench.leaderboards.pages import plain_value
from dare_bench.runs.scores import Score
from dare_bench.runs.text import one_line

Key = tuple[str, str]
"""A checkpoint: the hash of its content, and that of the adapter on it (empty: none)."""
_TOLD = 4
"""Settings in which two recipes differ that a title names at most."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A score of a checkpoint and the run that it is from."""

    entry: Entry
    score: Score


@dataclass(slots=True)
class Node:
    """A checkpoint. Without ``entries`` it was never evaluated, and is known only as what others were made from.

    ``lineage`` is its last training (None: it was not trained here, or does not know), ``recipes`` what was trained
    from it.
    """

    key: Key
    name: str
    lineage: Mapping[str, Any] | None = None
    entries: list[Entry] = field(default_factory=list)
    parent: Node | None = None
    recipes: list[Recipe] = field(default_factory=list)

    @property
    def step(self) -> float | None:
        found = self.lineage.get("step") if self.lineage else None
        return found if isinstance(found, (int, float)) and not isinstance(found, bool) else None

    @property
    def created(self) -> str:
        return max((entry.created for entry in self.entries), default="")

    def below(self) -> Iterator[Node]:
        """All checkpoints that come from this one, at any depth."""
        for recipe in self.recipes:
            for training in recipe.trainings:
                for node in training.nodes:
                    yield node
                    yield from node.below()

    def scored(self, task: str) -> list[Scored]:
        """Its scores of a task, complete and new ones first."""
        found = [Scored(entry, score) for entry in self.entries if (score := entry.headline(task)) is not None]
        newest = sorted(found, key=lambda one: one.entry.created, reverse=True)
        return sorted(newest, key=lambda one: (not one.entry.complete, one.score.limited))


@dataclass(frozen=True, slots=True)
class Edge:
    """A checkpoint's score of a task beside that of the checkpoint it was made from; ``why`` there is none."""

    node: Node
    task: str
    own: Scored
    base: Scored | None
    why: str = ""


@dataclass(slots=True)
class Training:
    """One training: the evaluated (or further trained) checkpoints that it left, by step."""

    seed: Any
    nodes: list[Node] = field(default_factory=list)

    @property
    def last(self) -> Node:
        return self.nodes[-1]


@dataclass(slots=True)
class Recipe:
    """Trainings of one base that differ in their seed alone. ``detail`` names settings where two recipes are called
    alike otherwise."""

    title: str
    data: str
    steps: Any
    detail: str = ""
    trainings: list[Training] = field(default_factory=list)


def trees(entries: Iterable[Entry]) -> list[Node]:
    """The checkpoints that nothing here was made into, with all that was made from them; checkpoints that neither were
    trained here nor have children are left out. In the order of the names."""
    nodes = _nodes(entries)
    for node in list(nodes.values()):
        _join(node, nodes)
    roots = [node for node in nodes.values() if node.parent is None]
    recipes: dict[tuple[Key, str], Recipe] = {}
    for node in nodes.values():
        if node.parent is not None:
            _place(node, node.parent, recipes)
    for node in nodes.values():
        _order(node)
    return sorted((root for root in roots if root.recipes), key=lambda root: (root.name, root.key))


def tasks_of(root: Node, columns: Sequence[str]) -> list[str]:
    """The tasks that a tree has scores of, in the order of a board's columns."""
    found = dict.fromkeys(task for node in (root, *root.below()) for entry in node.entries for task in entry.top_level)
    return [*(task for task in columns if task in found), *(task for task in found if task not in columns)]


def usual_settings(root: Node, task: str) -> str:
    """The settings fingerprint under which most checkpoints of a tree have a score of a task; newer ones win a tie."""
    counts: Counter[str] = Counter()
    newest: dict[str, str] = {}
    for node in (root, *root.below()):
        for fingerprint, created in {one.score.fingerprint: one.entry.created for one in node.scored(task)}.items():
            counts[fingerprint] += 1
            newest[fingerprint] = max(newest.get(fingerprint, ""), created)
    return max(counts, key=lambda one: (counts[one], newest[one]), default="")


def chosen(node: Node, task: str, fingerprint: str) -> Scored | None:
    """The score that stands for a checkpoint: one under the settings that are asked for, else the newest sound one."""
    found = node.scored(task)
    return next((one for one in found if one.score.fingerprint == fingerprint), found[0] if found else None)


def edge(node: Node, task: str, own: Scored) -> Edge:
    """What a score is compared with: the parent's under the same settings, else under the same prompts, else its newest
    one (whoever compares the two says what differs)."""
    parent = node.parent
    if parent is None or not parent.entries:
        return Edge(node, task, own, None, f"{parent.name} was not evaluated" if parent else "it was not trained here")
    found = parent.scored(task)
    if not found:
        return Edge(node, task, own, None, f"{parent.name} was not evaluated on {task}")
    alike = [one for one in found if one.score.fingerprint == own.score.fingerprint]
    asked = [one for one in found if one.score.task_fingerprint == own.score.task_fingerprint]
    return Edge(node, task, own, (alike or asked or found)[0])


def edges(root: Node) -> Iterator[Edge]:
    """The scores of all that comes from ``root``, each beside that of its parent."""
    tasks = tasks_of(root, ())
    usual = {task: usual_settings(root, task) for task in tasks}
    for node in root.below():
        for task in tasks:
            own = chosen(node, task, usual[task])
            if own is not None:
                yield edge(node, task, own)


def _nodes(entries: Iterable[Entry]) -> dict[Key, Node]:
    """The evaluated checkpoints."""
    nodes: dict[Key, Node] = {}
    for entry in entries:
        if len(entry.checkpoint) < 3 or not entry.checkpoint[1]:
            continue
        key = entry.checkpoint[1], entry.checkpoint[2]
        node = nodes.setdefault(key, Node(key, entry.model))
        node.entries.append(entry)
        node.lineage = _sound(entry.lineage) or node.lineage
    return nodes


def _sound(lineage: Any) -> Mapping[str, Any] | None:
    """A lineage that tells what a checkpoint was made from; None where it does not."""
    told = isinstance(lineage, dict) and isinstance(lineage.get("base_content"), str) and lineage["base_content"]
    return lineage if told else None


def _join(node: Node, nodes: dict[Key, Node]) -> None:
    """Find a checkpoint's parent, or make one that nobody has evaluated, up to the first base."""
    while node.lineage is not None:
        adapter = node.lineage.get("base_adapter")
        key = str(node.lineage["base_content"]), adapter if isinstance(adapter, str) else ""
        known = nodes.get(key)
        if known is None:
            before = node.lineage.get("parents")
            last = before[-1] if isinstance(before, (list, tuple)) and before else None
            own = _sound(last)
            if own is not None and isinstance(before, (list, tuple)):
                own = {**own, "parents": before[:-1]}
            known = nodes[key] = Node(key, str(node.lineage.get("base")), own)
            node.parent = known
            node = known  # it has a parent of its own, perhaps
            continue
        if not _comes_from(known, node):  # files can say that two checkpoints were made from each other
            node.parent = known
        return


def _comes_from(node: Node, other: Node) -> bool:
    """Is ``other`` this checkpoint or among what it was made from?"""
    at: Node | None = node
    while at is not None:
        if at is other:
            return True
        at = at.parent
    return False


def _place(node: Node, parent: Node, recipes: dict[tuple[Key, str], Recipe]) -> None:
    """Put a checkpoint into its recipe and training, below its parent."""
    assert node.lineage is not None
    key = parent.key, _recipe_of(node)
    if key not in recipes:
        data = one_line(str(node.lineage.get("data")), 60)
        recipes[key] = Recipe(one_line(method_of(node.lineage), 60), data, node.lineage.get("steps"))
        parent.recipes.append(recipes[key])
    for training in recipes[key].trainings:
        if _identity(training.last) == _identity(node):
            training.nodes.append(node)
            return
    recipes[key].trainings.append(Training(node.lineage.get("seed"), [node]))


def _recipe_of(node: Node) -> str:
    """All that a training was asked but its seed; the rows that are drawn from its data depend on that."""
    assert node.lineage is not None
    names = ("method", "peft", "data", "steps", "settings", "options")
    return json.dumps([node.lineage.get(name) for name in names], sort_keys=True, default=str)


def _identity(node: Node) -> tuple[Any, ...]:
    assert node.lineage is not None
    return str(node.lineage.get("seed")), str(node.lineage.get("data_hash"))


def _order(node: Node) -> None:
    """Steps, seeds and recipes in their order; recipes of one name told apart."""
    for recipe in node.recipes:
        for training in recipe.trainings:
            training.nodes.sort(key=lambda one: (one.step or 0, one.created))
        recipe.trainings.sort(key=lambda one: (str(one.seed).zfill(9), one.last.created))
    node.recipes.sort(key=lambda one: (one.data, one.title, str(one.steps)))
    named: dict[tuple[str, str, str], list[Recipe]] = {}
    for recipe in node.recipes:
        named.setdefault((recipe.title, recipe.data, str(recipe.steps)), []).append(recipe)
    for alike in named.values():
        if len(alike) > 1:
            _tell_apart(alike)


def _tell_apart(recipes: Sequence[Recipe]) -> None:
    """Name the settings in which recipes differ."""
    flat = [_settings(recipe.trainings[0].last) for recipe in recipes]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    differing = [key for key in keys if len({settings.get(key) for settings in flat}) > 1][:_TOLD]
    for recipe, settings in zip(recipes, flat, strict=True):
        recipe.detail = ", ".join(f"{key} {settings.get(key, '–')}" for key in differing)


def _settings(node: Node) -> dict[str, str]:
    assert node.lineage is not None
    found: dict[str, str] = {}
    for part in ("settings", "options"):
        values = node.lineage.get(part)
        for key, value in (values if isinstance(values, dict) else {}).items():
            found[one_line(str(key), 30)] = one_line(plain_value(value), 30)
    return found
