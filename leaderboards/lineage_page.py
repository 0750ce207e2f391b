"""Where checkpoints come from: base, fine-tuning, adapters, reinforcement learning as a tree, each step with what it
changed, and the score of every evaluated checkpoint against its training step."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dare_bench.leaderboards import comparing, pair_page
from dare_bench.leaderboards.charts import Base, Series, Step, lines
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.descent import (
    Node,
    Recipe,
    Scored,
    Training,
    chosen,
    edge,
    tasks_of,
    trees,
    usual_settings,
)
from dare_bench.leaderboards.pages import Link, slug
from dare_bench.leaderboards.pair_page import Delta
from dare_bench.leaderboards.site import Site
from dare_bench.leaderboards.steps import adjust, family, kind, steps_of
from dare_bench.runs.scores import Score, is_share

INDEX = "lineage/index.html"


@dataclass(frozen=True, slots=True)
class Line:
    """A checkpoint's score of one task, beside that of what it was made from: ``delta``, or ``why`` there is none."""

    label: str
    page: str
    value: float
    lo: float | None
    hi: float | None
    n: int
    share: bool
    delta: Delta | None = None
    why: str = ""
    other_settings: int = 0


@dataclass(frozen=True, slots=True)
class Mean:
    """The last checkpoints of several seeds: their mean and how far apart they are; ``gain`` is the mean difference to
    what they were made from, over those that have one."""

    value: float
    low: float
    high: float
    deviation: float
    seeds: int
    share: bool
    gain: float | None


@dataclass(frozen=True, slots=True)
class Results:
    """A recipe's results of one task: its seeds' last checkpoints, and the earlier ones."""

    task: str
    mean: Mean | None
    last: list[Line]
    earlier: list[Line]


@dataclass(frozen=True, slots=True)
class Branch:
    """One recipe as the tree shows it. ``after``: what was trained from its checkpoints, by checkpoint."""

    title: str
    data: str
    steps: str
    detail: str
    seeds: int
    checkpoints: int
    results: list[Results]
    missing: list[str]
    after: list[tuple[str, list[Branch]]]


@dataclass(frozen=True, slots=True)
class Chart:
    """Scores against step of all that was trained from one checkpoint, on one task."""

    title: str
    metric: str
    share: bool
    higher: bool
    series: list[Series]
    base: Base | None


@dataclass(frozen=True, slots=True)
class Tree:
    """A base and all that comes from it. ``scores`` are the base's own, empty if it was not evaluated."""

    name: str
    place: str
    scores: list[tuple[str, Line]]
    branches: list[Branch]
    charts: list[Chart]
    checkpoints: int
    paired: bool


def link(context: Context) -> Link | None:
    """In the navigation where any run tells what its checkpoint was trained from."""
    return Link(INDEX, "Lineage") if trees(context.entries) else None


def write(site: Site, context: Context) -> None:
    """A page for each tree, and one that leads to them where there are several."""
    roots = trees(context.entries)
    columns = [column.task for column in context.views[0].columns]
    made = []
    seen: dict[str, int] = {}
    for root in roots:
        name = slug(root.name)
        count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
        name = name if count == 1 else f"{name}--{count}"
        # "index" is taken, whatever a checkpoint is called.
        place = INDEX if len(roots) == 1 else f"lineage/from-{name}.html"
        made.append(_Reading(site, context, root, tasks_of(root, columns)).tree(place))
    known = family(steps_of(site, context)[0]) if context.samples else []
    for tree in made:
        told = tree, len(made), known
        site.part(f"lineage {tree.place}", told, partial(_write_tree, site, *told))
    if len(made) > 1:
        site.part("lineage", made, partial(_write_index, site, made))


def _write_tree(site: Site, tree: Tree, count: int, known: Sequence[float]) -> None:
    charts = [_drawn(chart, f"steps-{at}") for at, chart in enumerate(tree.charts, start=1)]
    # p is adjusted here, where it is written: a rebuild without a change needs no statistics.
    told = {**_told(), "adjusted": adjust(known), "kind": kind}
    site.page(tree.place, "lineage.html.j2", tree=tree, trees=[], charts=charts, alone=count == 1, **told)


def _write_index(site: Site, made: Sequence[Tree]) -> None:
    site.page(INDEX, "lineage.html.j2", tree=None, trees=made, charts=[], alone=False, **_told())


def _told() -> dict[str, Any]:
    return comparing.FORMATS


def _drawn(chart: Chart, ident: str) -> Any:
    return lines(
        chart.series,
        ident=ident,
        title=chart.title,
        y_title=chart.metric,
        base=chart.base,
        higher_is_better=chart.higher,
        percent=chart.share,
    )


class _Reading:
    """A tree on its way to the page: which score stands for each checkpoint, and the pairs with their parents."""

    def __init__(self, site: Site, context: Context, root: Node, tasks: Sequence[str]) -> None:
        self.site, self.context, self.root, self.tasks = site, context, root, tasks
        self._usual = {task: usual_settings(root, task) for task in tasks}

    def tree(self, place: str) -> Tree:
        own = [(task, self._line(found, "")) for task, found in self._scores(self.root)]
        branches = [self._branch(recipe) for recipe in self.root.recipes]
        charts = [chart for node in (self.root, *self.root.below()) for chart in self._charts(node)]
        count = 1 + sum(1 for _ in self.root.below())
        return Tree(self.root.name, place, own, branches, charts, count, self.context.samples)

    def _scores(self, node: Node) -> Iterator[tuple[str, Scored]]:
        for task in self.tasks:
            found = chosen(node, task, self._usual[task])
            if found is not None:
                yield task, found

    def _line(self, found: Scored, label: str, delta: Delta | None = None, why: str = "", others: int = 0) -> Line:
        score = found.score
        return Line(
            label, found.entry.page, score.value, score.lo, score.hi, score.n, is_share(score), delta, why, others
        )

    def _compared(self, node: Node, task: str, own: Scored, label: str) -> Line:
        """A checkpoint's score and its paired difference to its parent's."""
        others = len({one.score.fingerprint for one in node.scored(task)}) - 1
        made = edge(node, task, own)
        if made.base is None:
            return self._line(own, label, why=made.why, others=others)
        if not self.context.samples:
            return self._line(own, label, others=others)
        first, second = made.base.entry, own.entry
        found = pair_page.difference(self.site, first, second, task, own.score.key)
        if isinstance(found, str):
            return self._line(own, label, why=f"not comparable: {found}", others=others)
        return self._line(own, label, found, others=others)

    def _branch(self, recipe: Recipe) -> Branch:
        results = [made for task in self.tasks if (made := self._results(recipe, task)) is not None]
        nodes = [node for training in recipe.trainings for node in training.nodes]
        missing = [_label(t, node) for t in recipe.trainings for node in t.nodes if not node.entries]
        after = [
            (_label(training, node), [self._branch(one) for one in node.recipes])
            for training in recipe.trainings
            for node in training.nodes
            if node.recipes
        ]
        return Branch(
            recipe.title,
            recipe.data,
            str(recipe.steps),
            recipe.detail,
            len(recipe.trainings),
            len(nodes),
            results,
            missing,
            after,
        )

    def _results(self, recipe: Recipe, task: str) -> Results | None:
        last, earlier = [], []
        for training in recipe.trainings:
            scored = [(node, own) for node in training.nodes if (own := chosen(node, task, self._usual[task]))]
            made = [self._compared(node, task, own, _label(training, node)) for node, own in scored]
            last += made[-1:]
            earlier += made[:-1]
        return Results(task, _mean(last), last, earlier) if last else None

    def _charts(self, node: Node) -> Iterator[Chart]:
        """One chart for each task that anything trained from ``node`` has a score of."""
        for task in self.tasks:
            series, scores = [], []
            for recipe in node.recipes:
                for training in recipe.trainings:
                    found = [(one, own) for one in training.nodes if (own := chosen(one, task, self._usual[task]))]
                    scores += [own.score for _, own in found]
                    if found:
                        series.append(_series(recipe, training, found))
            if not series:
                continue
            base = chosen(node, task, self._usual[task])
            share = all(is_share(score) for score in scores)
            start = _start(node, base.score, base.entry.page) if base else None
            higher = not any(score.higher_is_better is False for score in scores)
            yield Chart(f"{task}, trained from {node.name}", scores[0].metric, share, higher, series, start)


def _start(node: Node, score: Score, page: str) -> Base:
    return Base(node.name, score.value, _up(page), score.lo, score.hi)


def _series(recipe: Recipe, training: Training, found: Sequence[tuple[Node, Scored]]) -> Series:
    group = ", ".join(filter(None, [f"{recipe.title} on {recipe.data}", recipe.detail]))
    steps = [
        Step(node.step or 0, own.score.value, _up(own.entry.page), own.score.lo, own.score.hi, own.entry.settings)
        for node, own in found
    ]
    several = len(recipe.trainings) > 1
    name = f"{group}, seed {training.seed}" if several else group
    return Series(name, steps, group, f"{recipe.title}, seed {training.seed}" if several else recipe.title)


def _up(page: str) -> str:
    """A page's place as seen from lineage/."""
    return f"../{page}"


def _label(training: Training, node: Node) -> str:
    step = "" if node.step is None else f", step {node.step:g}"
    return f"seed {training.seed}{step}"


def _mean(last: Sequence[Line]) -> Mean | None:
    if len(last) < 2:
        return None
    values = [line.value for line in last]
    gains = [line.delta.value for line in last if line.delta is not None]
    return Mean(
        statistics.fmean(values),
        min(values),
        max(values),
        statistics.stdev(values),
        len(values),
        all(line.share for line in last),
        statistics.fmean(gains) if len(gains) == len(last) else None,
    )
