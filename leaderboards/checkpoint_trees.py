"""Trees of checkpoints by the lineage that runs record, grouped by training recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.analysis.names import distinguishing, method_of, setting_texts, training_settings
from dare_bench.leaderboards.entries import BoardEntry, RunScore, recipe_facts
from dare_bench.runs.scores import Score
from dare_bench.runs.text import one_line

Key = tuple[str, str]
"""The content hash of a checkpoint and that of its adapter (empty for none)."""


@dataclass(slots=True)
class CheckpointNode:
    """A checkpoint in a tree. Without ``entries`` it was never evaluated, and is known only as the base of others.

    ``lineage`` describes its last training (None: not trained here, or not recorded); ``recipes`` are
    the trainings that started from it.
    """

    key: Key
    name: str
    lineage: Mapping[str, Any] | None = None
    entries: list[BoardEntry] = field(default_factory=list)
    parent: CheckpointNode | None = None
    recipes: list[TrainingRecipe] = field(default_factory=list)

    @property
    def step(self) -> float | None:
        step = self.lineage.get("step") if self.lineage else None
        return step if isinstance(step, (int, float)) and not isinstance(step, bool) else None

    @property
    def created(self) -> str:
        return max((entry.created for entry in self.entries), default="")

    def below(self) -> Iterator[CheckpointNode]:
        """All checkpoints that were trained from this one, at any depth."""
        for recipe in self.recipes:
            for training in recipe.trainings:
                for node in training.nodes:
                    yield node
                    yield from node.below()

    def scored(self, task: str) -> list[RunScore]:
        """Its scores of a task, complete and new ones first."""
        scores = [RunScore(score, entry) for entry in self.entries if (score := entry.score(task)) is not None]
        scores.sort(key=lambda score: score.entry.created, reverse=True)
        return sorted(scores, key=lambda score: (not score.entry.complete, score.score.limited))


@dataclass(slots=True)
class SeedTraining:
    """One training with one seed: its checkpoints that were evaluated (or trained further), by step."""

    seed: Any
    nodes: list[CheckpointNode] = field(default_factory=list)

    @property
    def last(self) -> CheckpointNode:
        return self.nodes[-1]


@dataclass(slots=True)
class TrainingRecipe:
    """Trainings from one base that differ only in their seed. ``detail`` names the settings that distinguish recipes
    with the same title, data and steps. A ``control`` was trained with random rewards, which teach nothing."""

    title: str
    data: str
    steps: Any
    detail: str = ""
    control: bool = False
    trainings: list[SeedTraining] = field(default_factory=list)


def trees(entries: Iterable[BoardEntry]) -> list[CheckpointNode]:
    """The checkpoints without a parent from which others were trained, by name."""
    nodes = _nodes(entries)
    for node in list(nodes.values()):
        _find_parent(node, nodes)
    recipes: dict[tuple[Key, str], TrainingRecipe] = {}
    for node in nodes.values():
        if node.parent is not None:
            _add_to_recipe(node, node.parent, recipes)
    for node in nodes.values():
        _sort(node)
    roots = [node for node in nodes.values() if node.parent is None and node.recipes]
    return sorted(roots, key=lambda root: (root.name, root.key))


def tasks_of(root: CheckpointNode, columns: Sequence[str]) -> list[str]:
    """The tasks that a tree has scores of, in the order of a board's columns."""
    tasks = dict.fromkeys(task for node in (root, *root.below()) for entry in node.entries for task in entry.top_level)
    return [*(task for task in columns if task in tasks), *(task for task in tasks if task not in columns)]


def usual_settings(root: CheckpointNode, task: str) -> str:
    """The settings fingerprint under which most checkpoints of a tree have a score of a task; of several, the one with
    most sample lines, which comparisons need, then the newest."""
    counts: Counter[str] = Counter()
    logged: Counter[str] = Counter()
    newest: dict[str, str] = {}
    for node in (root, *root.below()):
        for fingerprint, entry in {own.score.fingerprint: own.entry for own in node.scored(task)}.items():
            counts[fingerprint] += 1
            logged[fingerprint] += task in entry.files
            newest[fingerprint] = max(newest.get(fingerprint, ""), entry.created)
    return max(counts, key=lambda name: (counts[name], logged[name], newest[name]), default="")


def representative(node: CheckpointNode, task: str, fingerprint: str) -> RunScore | None:
    """The score that represents a checkpoint: one under these settings, else the newest complete one."""
    scores = node.scored(task)
    return next((own for own in scores if own.score.fingerprint == fingerprint), scores[0] if scores else None)


def base_score(node: CheckpointNode, task: str, score: Score) -> RunScore | str:
    """The parent's score that a checkpoint's score is compared with: one under the same settings, else with the same
    prompts, else the newest one (the comparison then names the differences). Or why there is none."""
    parent = node.parent
    if parent is None or not parent.entries:
        return f"{parent.name} was not evaluated" if parent else "it was not trained here"
    scores = parent.scored(task)
    if not scores:
        return f"{parent.name} was not evaluated on {task}"
    same_settings = [base for base in scores if base.score.fingerprint == score.fingerprint]
    same_prompts = [base for base in scores if base.score.task_fingerprint == score.task_fingerprint]
    return (same_settings or same_prompts or scores)[0]


def edges(root: CheckpointNode) -> Iterator[tuple[str, RunScore, RunScore | str]]:
    """(task, score, :func:`base_score`) of all checkpoints below ``root``."""
    tasks = tasks_of(root, ())
    usual = {task: usual_settings(root, task) for task in tasks}
    for node in root.below():
        for task in tasks:
            own = representative(node, task, usual[task])
            if own is not None:
                yield task, own, base_score(node, task, own.score)


def _nodes(entries: Iterable[BoardEntry]) -> dict[Key, CheckpointNode]:
    nodes: dict[Key, CheckpointNode] = {}
    for entry in entries:
        key = entry.checkpoint.content, entry.checkpoint.adapter
        if not entry.checkpoint.content:
            continue
        node = nodes.setdefault(key, CheckpointNode(key, entry.model))
        node.entries.append(entry)
        node.lineage = _valid(entry.lineage) or node.lineage
    return nodes


def _valid(lineage: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A lineage that names the content of its base, else None."""
    return lineage if lineage and lineage.get("base_content") else None


def _find_parent(node: CheckpointNode, nodes: dict[Key, CheckpointNode]) -> None:
    """Link a checkpoint to its parent; parents that were never evaluated are added, up to the first base."""
    while node.lineage is not None:
        key = str(node.lineage["base_content"]), str(node.lineage.get("base_adapter") or "")
        parent = nodes.get(key)
        if parent is not None:
            if not _descends_from(parent, node):  # files may claim that two checkpoints were trained from each other
                node.parent = parent
            return
        earlier = node.lineage.get("parents", ())
        last = _valid(earlier[-1]) if earlier else None
        lineage = {**last, "parents": earlier[:-1]} if last else None
        nodes[key] = CheckpointNode(key, str(node.lineage.get("base")), lineage)
        node.parent = nodes[key]
        node = nodes[key]


def _descends_from(node: CheckpointNode, other: CheckpointNode) -> bool:
    ancestor: CheckpointNode | None = node
    while ancestor is not None and ancestor is not other:
        ancestor = ancestor.parent
    return ancestor is other


def _add_to_recipe(
    node: CheckpointNode, parent: CheckpointNode, recipes: dict[tuple[Key, str], TrainingRecipe]
) -> None:
    lineage = node.lineage
    assert lineage is not None
    key = parent.key, recipe_facts(lineage)
    if key not in recipes:
        data, control = one_line(str(lineage.get("data")), 60), _has_random_rewards(lineage)
        title = one_line(method_of(lineage), 60) + (", control with random rewards" if control else "")
        recipes[key] = TrainingRecipe(title, data, lineage.get("steps"), control=control)
        parent.recipes.append(recipes[key])
    trainings = recipes[key].trainings
    training = next((other for other in trainings if _seed_and_data(other.last) == _seed_and_data(node)), None)
    if training is None:
        training = SeedTraining(lineage.get("seed"))
        trainings.append(training)
    training.nodes.append(node)


def _has_random_rewards(lineage: Mapping[str, Any]) -> bool:
    """Is the reward "random" the only one of a training?"""
    rewards = [name for name, value in training_settings(lineage).items() if value and name.startswith("reward ")]
    return rewards == ["reward random"]


def _seed_and_data(node: CheckpointNode) -> tuple[str, str]:
    assert node.lineage is not None
    return str(node.lineage.get("seed")), str(node.lineage.get("data_hash"))


def _sort(node: CheckpointNode) -> None:
    """Sort checkpoints by step, trainings by seed, and recipes by name; distinguish recipes with the same name."""
    for recipe in node.recipes:
        for training in recipe.trainings:
            training.nodes.sort(key=lambda own: (own.step or 0, own.created))
        recipe.trainings.sort(key=lambda own: (str(own.seed).zfill(9), own.last.created))
    node.recipes.sort(key=lambda own: (own.data, own.title, str(own.steps)))
    by_name: dict[tuple[str, str, str], list[TrainingRecipe]] = {}
    for recipe in node.recipes:
        by_name.setdefault((recipe.title, recipe.data, str(recipe.steps)), []).append(recipe)
    for recipes in by_name.values():
        if len(recipes) > 1:
            settings = [setting_texts(recipe.trainings[0].last.lineage or {}) for recipe in recipes]
            for recipe, (texts,) in zip(recipes, distinguishing([[texts] for texts in settings]), strict=True):
                recipe.detail = ", ".join(texts)
