"""Published scores and their reproductions by runs of their recipes, and whether they differ beyond noise.

Both scores are means over documents, each with an interval at 95 %. The interval of their difference is Newcombe's:
Statistics in Medicine 17, 1998, method 10, for two shares; the rule of Zou and Donner, 2008, for means with other
intervals, such as those of repeated answers. It treats the scores as independent, although both are of the same
documents: the interval is conservative, and "differs" is more reliable than "within noise".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.analysis.intervals import LEVEL, difference_bounds, wilson_bounds
from dare_bench.analysis.settings import answers_each
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import RecipeBlock
from dare_bench.runs.scores import Score
from dare_bench.runs.text import counted, no_answer

PublishedVerdict = Literal["differs beyond noise", "within noise", "cannot tell", "another model"]
_OTHER_MODEL = "model: "


@dataclass(frozen=True, slots=True)
class Bounded:
    """A mean over ``n`` documents and its interval; None: unknown."""

    value: float
    lo: float | None
    hi: float | None
    n: int | None


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """One row of the report. Scores and differences are shares from 0 to 1; ``reason`` is the reason of "cannot tell";
    ``notes`` are what weakens the comparison."""

    recipe: str
    run_id: str
    model: str
    task: str
    metric: str
    source: str
    measures: str
    published: Bounded | None
    reproduced: Bounded | None
    difference: Bounded | None
    verdict: PublishedVerdict
    reason: str
    settings: str
    deviations: tuple[str, ...]
    missing: tuple[str, ...]
    doubts: tuple[str, ...]
    notes: tuple[str, ...]


def comparisons(runs: Iterable[Run]) -> list[PublishedComparison]:
    """Compare the runs of recipes with the published scores, in the order given."""
    return [
        compare_with_published(run, recipe) for run in runs if run.block is not None for recipe in run.block.recipes
    ]


def compare_with_published(run: Run, recipe: RecipeBlock) -> PublishedComparison:
    """Compare one run with one published score."""
    score = find_score(run, recipe.score)
    published, problem = published_score(recipe.published, _subsets(run, score, recipe.published))
    reproduced = Bounded(score.value, score.lo, score.hi, score.n) if score else None
    difference = _difference(published, reproduced)
    if score is None:
        problem = f"the run has no score {_score_name(recipe.score)}"
    elif not problem and not 0 <= score.value <= 1:
        problem = f"the reproduced score {score.value:g} is not a share from 0 to 1"
    elif not problem and (score.lo is None or score.hi is None):
        problem = f"the reproduced score has no interval (n={score.n})"
    verdict: PublishedVerdict = "cannot tell"
    if not problem and difference is not None and difference.lo is not None and difference.hi is not None:
        verdict = "within noise" if difference.lo <= 0 <= difference.hi else "differs beyond noise"
    if any(text.startswith(_OTHER_MODEL) for text in recipe.deviations):
        verdict = "another model"  # the published number is not a claim about this checkpoint
    return PublishedComparison(
        recipe=recipe.name,
        run_id=run.run_id,
        model=run.model,
        task=score.task if score else str(recipe.score.get("task", "")),
        metric=score.key if score else _score_name(recipe.score),
        source=str(recipe.published.get("source") or ""),
        measures=str(recipe.published.get("measures") or recipe.published.get("metric") or "a score"),
        published=published,
        reproduced=reproduced,
        difference=difference,
        verdict=verdict,
        reason=problem,
        settings=recipe.settings,
        deviations=tuple(recipe.deviations),
        missing=tuple(recipe.missing),
        doubts=tuple(recipe.doubts),
        notes=tuple(_notes(run, score, published, recipe.published)),
    )


def find_score(run: Run, named: Mapping[str, Any]) -> Score | None:
    """The score that a recipe names by task, metric and filter ("none" if it names no filter)."""
    names = (named.get("task"), named.get("metric"), named.get("filter", "none"))
    return next((score for score in run.scores() if (score.task, score.metric, score.filter) == names), None)


def published_score(published: Mapping[str, Any], subsets: Sequence[int] = ()) -> tuple[Bounded | None, str]:
    """The published number with Wilson's interval, and why there is no interval (empty if there is one).

    The interval is that of a share of ``n`` documents. For other values from 0 to 1 (means over repeated answers,
    partial credit) it is conservative, since their variance is at most that of a share with the same mean.
    ``subsets``: the sizes of the data sets whose plain mean was published, for its effective size.
    """
    value, n = _number(published.get("value")), _number(published.get("n"))
    if value is None:
        return None, "no number was published"
    if not 0 <= value <= 1:
        return Bounded(value, None, None, None), f"the published number {value:g} is not a share from 0 to 1"
    if n is None or n < 1:
        return Bounded(value, None, None, None), "the size of the published test set is not recorded"
    lo, hi = wilson_bounds(value, effective_size(subsets) if subsets else n, LEVEL)
    return Bounded(value, lo, hi, int(n)), ""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def effective_size(sizes: Sequence[int]) -> float:
    """The effective sample size of a plain mean over k sets of these sizes: k^2 / sum(1 / size)."""
    return len(sizes) ** 2 / sum(1 / size for size in sizes)


def _subsets(run: Run, score: Score | None, published: Mapping[str, Any]) -> list[int]:
    """The sizes of the data sets behind a published plain mean, as recorded in this run; none if they are not."""
    if published.get("mean_over") != "subsets" or score is None or run.block is None:
        return []
    tasks = [run.block.tasks.get(name) for name in members(run.results, score.task)]
    sizes = [task.n_total or 0 for task in tasks if task is not None]
    return sizes if len(sizes) == len(tasks) > 1 and min(sizes) > 0 else []


def _difference(published: Bounded | None, reproduced: Bounded | None) -> Bounded | None:
    """Reproduced less published, with Newcombe's interval where both have one."""
    if published is None or reproduced is None:
        return None
    a, b = reproduced, published
    value = a.value - b.value
    if a.lo is None or a.hi is None or b.lo is None or b.hi is None:
        return Bounded(value, None, None, None)
    return Bounded(value, *difference_bounds((a.value, a.lo, a.hi), (b.value, b.lo, b.hi)), None)


def _notes(run: Run, score: Score | None, published: Bounded | None, facts: Mapping[str, Any]) -> Iterator[str]:
    if score is None or run.block is None:
        return
    if run.status != "complete":
        failed = len(run.block.failures)
        yield f"the run is {run.status}" + (f": {no_answer(failed)} left out" if failed else "")
    total = published.n if published else None
    if score.limited:
        documents = (
            f"{score.n} of {counted(score.n_total, 'document')}" if score.n_total else counted(score.n, "document")
        )
        yield f"limited: the run has {documents}, the published number is of {total or 'all'}"
    elif total is not None and total != (score.n_total or score.n):
        yield f"not the same test set: the published one has {total} documents, this one {score.n_total or score.n}"
    if facts.get("mean_over") == "subsets" and not _subsets(run, score, facts):
        yield "published as a plain mean of data sets of unknown sizes: its interval is approximate"
    answers = [("published", facts.get("repeats")), ("this run", answers_each(run, score.task))]
    if any(count not in (None, 1) for _, count in answers):
        counts = ", ".join(f"{side} {'not recorded' if count is None else count}" for side, count in answers)
        yield f"answers to each prompt: {counts}; intervals count documents, not answers"
    if score.tier == "A":
        yield "the sampler is approximate (tier A): its distribution differs from the published sampler's"
    if run.block.execution is not None and run.block.execution.unsafe:
        yield "generated code ran without a sandbox (--unsafe-no-sandbox)"


def _score_name(named: Mapping[str, Any]) -> str:
    """The score that a recipe names, in words: task, metric and filter as far as they are given."""
    return " ".join(f"{name} {named[name]!r}" for name in ("task", "metric", "filter") if named.get(name)) or "at all"
