"""Pages of the lineage: base, fine-tuned, adapted and RL-trained checkpoints as a tree, with what each training
changed and the scores of all evaluated checkpoints against their training step and, where recorded, forwards."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from dare_bench.leaderboards import pair_differences
from dare_bench.leaderboards.charts import Base, CurvePoint, Series, training_curves
from dare_bench.leaderboards.charts.labels import distinct
from dare_bench.leaderboards.charts.rows import Slope, slopes
from dare_bench.leaderboards.checkpoint_trees import (
    CheckpointNode,
    SeedTraining,
    TrainingRecipe,
    base_score,
    representative,
    tasks_of,
    usual_settings,
)
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import RunScore
from dare_bench.leaderboards.pair_differences import Delta, adjust, changes_of, p_values
from dare_bench.leaderboards.rendering import Link, unique_slugs
from dare_bench.leaderboards.site import Site
from dare_bench.runs import lineage
from dare_bench.runs.scores import Score

INDEX = "lineage/index.html"
PHASES = ("rollout", "score", "update")
"""The phases of a training in the order of a step; the forwards of any other are counted as ``other``."""
Line = tuple[TrainingRecipe, SeedTraining, Sequence[tuple[CheckpointNode, RunScore]]]
"""A training and its evaluated checkpoints by step, with their scores of one task."""


@dataclass(frozen=True, slots=True)
class _ScoreLine:
    """A checkpoint's score of one task and its difference to the parent's, or the ``reason`` why there is none.
    ``others``: how many more runs of the ``checkpoint`` (its page) have a score of the task."""

    label: str
    page: str
    score: Score
    delta: Delta | None = None
    reason: str = ""
    checkpoint: str = ""
    others: int = 0


def link(context: Context) -> Link | None:
    """In the navigation if any run records what its checkpoint was trained from."""
    return Link(INDEX, "Training") if context.lineage else None


def write(site: Site, context: Context) -> None:
    """Write a page for each tree, and an index where there are several."""
    roots = context.lineage
    columns = [column.task for column in context.views[0].columns]
    trees = []
    for root, name in zip(roots, unique_slugs(root.name for root in roots), strict=True):
        # Checkpoints may be called "index".
        place = INDEX if len(roots) == 1 else f"lineage/from-{name}.html"
        trees.append(_TreeBuilder(site, context, root, tasks_of(root, columns)).tree(place))
    p = p_values(changes_of(site, context)[0])
    for tree in trees:
        page = partial(_write_page, site, tree["place"], p, tree=tree, alone=len(trees) == 1)
        site.part(f"lineage {tree['place']}", (tree, len(trees), p), page)
    if len(trees) > 1:
        site.part("lineage", (trees, p), partial(_write_page, site, INDEX, p, trees=trees))


def _write_page(site: Site, place: str, p: Sequence[float], **values: Any) -> None:
    # p-values are adjusted only when the page is written: a rebuild without a change needs no statistics.
    site.page(place, "lineage.html.j2", **{"tree": None, "trees": [], "adjusted": adjust(p), **values})


class _TreeBuilder:
    """Arranges a tree for its page: the score of each checkpoint, and the differences to their parents."""

    def __init__(self, site: Site, context: Context, root: CheckpointNode, tasks: Sequence[str]) -> None:
        self.site, self.context, self.root, self.tasks = site, context, root, tasks
        self.unpaired = 0
        self._usual = {task: usual_settings(root, task) for task in tasks}

    def tree(self, place: str) -> dict[str, Any]:
        """The tree; ``scores`` are those of the base, empty if it was not evaluated."""
        root, nodes = self.root, [self.root, *self.root.below()]
        scored = [(node, task, lines) for node in nodes for task in self.tasks if (lines := self._lines(node, task))]
        forwards = list[dict[str, Any]]()
        for each in scored:
            if (chart := self._by_forwards(len(forwards) + 1, *each)) is not None:
                forwards.append(chart)
        return {
            "name": root.name,
            "place": place,
            "scores": [(task, _line(own, "")) for task in self.tasks if (own := self._score(root, task))],
            "branches": [self._branch(recipe) for recipe in root.recipes],
            # A training with a single step makes no curve: its row has the numbers.
            "charts": [
                self._by_steps(number, *each) for number, each in enumerate(filter(_has_steps, scored), start=1)
            ],
            "slopes": [
                self._slopes(f"slopes-{number}", *each)
                for number, each in enumerate(scored, start=1)
                if all(own.score.higher_is_better is not False for _, _, points in each[2] for _, own in points)
            ],
            "forwards": forwards,
            "checkpoints": len(nodes),
            "unpaired": self.unpaired,
        }

    def _score(self, node: CheckpointNode, task: str) -> RunScore | None:
        return representative(node, task, self._usual[task])

    def _branch(self, recipe: TrainingRecipe) -> dict[str, Any]:
        """One recipe in the tree; ``after`` are the recipes that started from its checkpoints, by checkpoint."""
        labeled = [(_label(training, node), node) for training in recipe.trainings for node in training.nodes]
        return {
            "title": recipe.title,
            "data": recipe.data,
            "steps": str(recipe.steps),
            "detail": recipe.detail,
            "seeds": len(recipe.trainings),
            "results": [results for task in self.tasks if (results := self._results(recipe, task)) is not None],
            "missing": [label for label, node in labeled if not node.entries],
            "after": [
                (label, [self._branch(recipe) for recipe in node.recipes]) for label, node in labeled if node.recipes
            ],
        }

    def _results(self, recipe: TrainingRecipe, task: str) -> dict[str, Any] | None:
        """A recipe's results of one task: the last checkpoint of each seed, and the earlier ones."""
        last, earlier = [], []
        for training in recipe.trainings:
            scores = [
                self._compared(node, task, own, _label(training, node))
                for node in training.nodes
                if (own := self._score(node, task))
            ]
            last += scores[-1:]
            earlier += scores[:-1]
        return {"task": task, "mean": _mean(last), "last": last, "earlier": earlier} if last else None

    def _compared(self, node: CheckpointNode, task: str, own: RunScore, label: str) -> _ScoreLine:
        """A checkpoint's score and its paired difference to the parent's."""
        line = partial(_line, own, label, checkpoint=own.entry.checkpoint_page, others=len(node.scored(task)) - 1)
        base = base_score(node, task, own.score)
        if isinstance(base, str):
            return line(reason=base)
        delta = pair_differences.difference(self.site, base.entry, own.entry, task, own.score.key)
        if isinstance(delta, str):
            return line(reason=f"not comparable: {delta}")
        self.unpaired += not delta.paired
        return line(delta=delta)

    def _slopes(self, ident: str, node: CheckpointNode, task: str, lines: Sequence[Line]) -> Markup:
        """The last scores of each recipe that started from ``node``, beside the score of ``node``."""
        recipes: dict[int, tuple[TrainingRecipe, list[Score]]] = {}
        for recipe, _, points in lines:
            recipes.setdefault(id(recipe), (recipe, []))[1].append(points[-1][1].score)
        rows = [
            Slope(_title_of(recipe), [score.value for score in scores], _facts_of(recipe), recipe.control)
            for recipe, scores in recipes.values()
        ]
        base, percent = self._score(node, task), all(s.is_share for _, scores in recipes.values() for s in scores)
        title = f"{task}, trained from {node.name}"
        return slopes(rows, base.score.value if base else None, ident=ident, title=title, percent=percent)

    def _by_steps(self, number: int, node: CheckpointNode, task: str, lines: Sequence[Line]) -> Markup:
        points = [
            (recipe, [_point(own, step.step or 0, step.step) for step, own in points]) for recipe, _, points in lines
        ]
        series = _by_recipe(points)
        return self._curves(f"steps-{number}", f"{task}, trained from {node.name}", node, task, lines, series)

    def _by_forwards(
        self, number: int, node: CheckpointNode, task: str, lines: Sequence[Line]
    ) -> dict[str, Any] | None:
        """The chart by forwards and the rows of its table; None unless at least two checkpoints have recorded forwards.
        ``missing`` counts those without."""
        rows, drawn, missing = list[dict[str, Any]](), list[tuple[TrainingRecipe, list[CurvePoint]]](), 0
        for recipe, training, points in lines:
            costs = [(step, own, cost) for step, own in points if (cost := _forwards_of(step))]
            missing += len(points) - len(costs)
            if costs:
                drawn.append((recipe, [_point_by_forwards(*cost) for cost in costs]))
                rows += [
                    {"line": _line(own, _label(training, step)), "training": recipe, "forwards": cost}
                    for step, own, cost in costs
                ]
        if len(rows) < 2:
            return None
        trained = {id(recipe): recipe for recipe, _ in drawn}
        names = dict(zip(trained, _names(list(trained.values())), strict=True))
        for row in rows:
            row["training"] = names[id(row["training"])]
        title, unit = f"{task} by forward passes, trained from {node.name}", "forward passes, counted per row"
        return {
            "drawing": self._curves(f"forwards-{number}", title, node, task, lines, _by_recipe(drawn), x_title=unit),
            "title": title,
            "rows": rows,
            "phases": [*dict.fromkeys(phase for row in rows for phase in row["forwards"])],
            "missing": missing,
        }

    def _lines(self, node: CheckpointNode, task: str) -> list[Line]:
        """The trainings that started from ``node`` and have scores of a task."""
        every = [(recipe, training) for recipe in node.recipes for training in recipe.trainings]
        scored = [
            (recipe, training, [(step, own) for step in training.nodes if (own := self._score(step, task))])
            for recipe, training in every
        ]
        return [line for line in scored if line[2]]

    def _curves(
        self, ident: str, title: str, node: CheckpointNode, task: str, lines: Sequence[Line], series: Sequence[Series],
        **more: str,
    ) -> Markup:  # fmt: skip
        scores = [own.score for _, _, points in lines for _, own in points]
        base = self._score(node, task)
        return training_curves(
            series,
            ident=ident,
            title=title,
            y_title=scores[0].metric,
            base=_base(node, base) if base else None,
            higher_is_better=not any(score.higher_is_better is False for score in scores),
            percent=all(score.is_share for score in scores),
            **more,
        )


def _has_steps(scored: tuple[CheckpointNode, str, Sequence[Line]]) -> bool:
    return any(len({step.step for step, _ in points}) > 1 for _, _, points in scored[2])


def _line(own: RunScore, label: str, **more: Any) -> _ScoreLine:
    return _ScoreLine(label, own.entry.page, own.score, **more)


def _base(node: CheckpointNode, own: RunScore) -> Base:
    return Base(node.name, own.score.value, f"../{own.entry.page}", own.score.lo, own.score.hi)


def _forwards_of(node: CheckpointNode) -> dict[str, int]:
    """The forward passes that a training had run when it saved a checkpoint, by phase, in all processes and counted per
    row; empty if its lineage has no counts. Those of the trainings before this one are not in it."""
    recorded = (lineage.counts(node.lineage or {}) or {}).get("forwards", {})
    forwards = {phase: recorded[phase] for phase in PHASES if phase in recorded}
    if other := sum(recorded.values()) - sum(forwards.values()):
        forwards["other"] = other
    return forwards if any(forwards.values()) else {}


def _point_by_forwards(node: CheckpointNode, own: RunScore, forwards: Mapping[str, int]) -> CurvePoint:
    total, detail = sum(forwards.values()), ", ".join(f"{phase} {count:,}" for phase, count in forwards.items())
    return _point(own, total, node.step, place=f"{total:,} forward passes, step {node.step or 0:g}", detail=detail)


def _point(own: RunScore, x: float, step: float | None, **more: str) -> CurvePoint:
    score, page, settings = own.score, f"../{own.entry.page}", own.entry.settings
    return CurvePoint(x, score.value, page, score.lo, score.hi, settings, step=step, **more)


def _by_recipe(trainings: Sequence[tuple[TrainingRecipe, Sequence[CurvePoint]]]) -> list[Series]:
    """A series for each recipe, with the points of all its seeds."""
    recipes: dict[int, tuple[TrainingRecipe, list[Sequence[CurvePoint]]]] = {}
    for recipe, points in trainings:
        recipes.setdefault(id(recipe), (recipe, []))[1].append(points)
    names = _names([recipe for recipe, _ in recipes.values()])
    return [
        Series(
            name,
            [point for points in seeds for point in points],
            label=recipe.title.removesuffix(" with random rewards"),
            seeds=len(seeds),
            control=recipe.control,
        )
        for name, (recipe, seeds) in zip(names, recipes.values(), strict=True)
    ]


def _names(recipes: Sequence[TrainingRecipe]) -> list[str]:
    """Their titles and data, followed by what varies between those that have the same: steps, settings."""
    return distinct([_title_of(recipe) for recipe in recipes], [_facts_of(recipe) for recipe in recipes], 160)


def _title_of(recipe: TrainingRecipe) -> str:
    return f"{recipe.title} on {recipe.data}"


def _facts_of(recipe: TrainingRecipe) -> str:
    """The steps, and the settings that distinguish a recipe from others of its title, data and steps."""
    return ", ".join(filter(None, [f"{recipe.steps} steps", recipe.detail]))


def _label(training: SeedTraining, node: CheckpointNode) -> str:
    step = "" if node.step is None else f", step {node.step:g}"
    return f"seed {training.seed}{step}"


def _mean(last: Sequence[_ScoreLine]) -> dict[str, Any] | None:
    """Mean and spread of the last checkpoints of several seeds; ``gain`` is the mean difference to their parents."""
    if len(last) < 2:
        return None
    values = [line.score.value for line in last]
    gains = [line.delta.value for line in last if line.delta is not None]
    return {
        "value": statistics.fmean(values),
        "low": min(values),
        "high": max(values),
        "deviation": statistics.stdev(values),
        "seeds": len(values),
        "share": all(line.score.is_share for line in last),
        "gain": statistics.fmean(gains) if len(gains) == len(last) else None,
    }
