"""One score of two runs, paired by document: ids and values, and the reasons why the scores may not be comparable.

Sample lines are read as a stream; only document ids and values are kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dare_bench.analysis.intervals import LEVEL, corrected
from dare_bench.analysis.paired_tests import Difference, paired_difference, with_draws
from dare_bench.analysis.settings import differing_settings
from dare_bench.analysis.task_changes import task_change
from dare_bench.errors import IncompleteError, RunError, UsageError, unknown
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.scores import Score
from dare_bench.runs.text import listed


class NotPooledError(UsageError):
    """The score of a group is not the mean over its tasks' documents: only the tasks can be compared."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The documents that both runs have a value for, in the first run's order.

    ``first`` and ``second`` are the documents' values, whose means are the two scores; document ids of a group are
    ``task/document``. ``only_first`` and ``only_second`` count documents with a value in one run only.
    ``differences``: settings that differ, by name, as (first, second). ``breaks``: why the two scores are not
    comparable (empty if they are); ``notes`` explain them.
    """

    task: str
    key: str
    ids: list[str]
    first: list[float]
    second: list[float]
    only_first: int
    only_second: int
    higher_is_better: bool | None
    differences: dict[str, tuple[Any, Any]]
    breaks: list[str]
    notes: list[str]
    scores: tuple[Score, Score]
    corrected: tuple[list[float], list[float]] | None = None
    """The values without the noise of draws, to first order, where values of a run have it."""

    def difference(self, level: float = LEVEL) -> Difference:
        """Second minus first; raises RunError where no document has a value in both runs."""
        if not self.ids:
            raise RunError(f"{self.task}: no document has a value of {self.key} in both runs; there is nothing to pair")
        difference = paired_difference(self.first, self.second, level)
        return difference if self.corrected is None else with_draws(difference, *self.corrected)


def pair(first: Run, second: Run, task: str, key: str | None = None) -> Pairing:
    """Pair one task or group of two runs.

    Args:
        key: the score as "metric,filter"; None: the task's headline in the first run.

    Raises:
        UsageError: a run does not have the task or the score, or the runs have different harnesses.
        NotPooledError: the score of a group is not the mean over its documents.
        RunError: a run has no score or no sample lines of the task.
        IncompleteError: a run has no results.
    """
    runs, scores = (first, second), [score_of(first, task, key)]
    scores.append(score_of(second, task, scores[0].key))
    require_same_harness(first, second)
    tasks, tasks_second = (members(run.results, task) for run in runs)
    breaks, notes = [], []
    if unshared := sorted(set(tasks) ^ set(tasks_second)):
        breaks.append(f"{task} does not have the same tasks: only one of the runs has {listed(unshared, 3)}")
    differences: dict[str, tuple[Any, Any]] = {}
    values = values_of(first, scores[0], tasks), values_of(second, scores[1], tasks_second)
    for name in [name for name in tasks if name in tasks_second]:
        change = task_change(first, second, name)
        where = f"{name}: " if len(tasks) > 1 else ""
        breaks += [f"{where}{text}" for text in change.breaks]
        notes += [f"{where}{text}" for text in change.notes if change.breaks]
        for setting, sides in differing_settings(first, second, name, name).items():
            if differences.setdefault(setting, sides) != sides:  # tasks of a group may differ in other values
                differences[f"{setting} ({name})"] = sides
    for run, score, side in zip(runs, scores, values, strict=True):
        if (text := side.problem()) is not None:
            if score.is_group:
                raise NotPooledError(f"{task} of {run.path}: {text}; compare its tasks: --task {tasks[0]}")
            breaks.append(f"{run.name}: {text}")
    ids = values[0].common(values[1])
    directions = [score.higher_is_better for score in scores if score.higher_is_better is not None]
    return Pairing(
        task=task,
        key=scores[0].key,
        ids=ids,
        first=values[0].of(ids),
        second=values[1].of(ids),
        only_first=len(values[0].parts) - len(ids),
        only_second=len(values[1].parts) - len(ids),
        higher_is_better=next(iter(directions), None),
        differences=differences,
        breaks=breaks,
        notes=notes,
        scores=(scores[0], scores[1]),
        corrected=(values[0].corrected(ids), values[1].corrected(ids)) if any(v.redrawn for v in values) else None,
    )


class DocumentValues:
    """The documents' values of one score: the sum and the number of parts of each.

    Most values are one number. Where a document has several (IFEval's instructions), the score is the mean over all
    parts, so each document is weighted by its number of parts.
    """

    def __init__(self, key: str, score: float) -> None:
        self.key, self.score = key, score
        self.parts: dict[str, tuple[float, int]] = {}
        self.targets: dict[str, Any] = {}
        """The hash of each document's target, where its line has one."""
        self.redrawn: dict[str, float] = {}
        """The value with other draws, of each document whose likelihoods are drawn."""
        self._has_other_types = False

    def add(self, doc: str, value: Any, target: Any = None, redrawn: float | None = None) -> None:
        """Add a document's value, a number or a list of numbers; other and non-finite values are left out."""
        if redrawn is not None:
            self.redrawn[doc] = redrawn
        values = value if isinstance(value, list) and value else [value]
        if not all(isinstance(part, (bool, int, float)) for part in values):
            self._has_other_types = True
        elif math.isfinite(total := math.fsum(values)):
            self.parts[doc], self.targets[doc] = (total, len(values)), target

    def add_line(self, score: Score, line: Mapping[str, Any], doc: str) -> None:
        """Add the value of ``score`` in a document's sample line, if it has one."""
        if line.get("filter", "none") == score.filter and line.get(score.metric) is not None:
            redrawn = line.get("redrawn", {}).get(score.metric)
            self.add(doc, line[score.metric], line.get("target_hash"), redrawn)

    def problem(self, rel_tol: float = 1e-6, abs_tol: float = 1e-9) -> str | None:
        """Why the score is not the mean of these values; None if it is."""
        if self._has_other_types or not self.parts:
            return f"its documents have no values of {self.key}"
        mean = math.fsum(total for total, _ in self.parts.values()) / sum(count for _, count in self.parts.values())
        if math.isclose(mean, self.score, rel_tol=rel_tol, abs_tol=abs_tol):
            return None
        return (
            f"{self.key} is {self.score:g}, the mean over its sample lines {mean:g}: it is not a mean over"
            " documents, or the lines were changed after the run"
        )

    def common(self, other: DocumentValues) -> list[str]:
        """The documents that have a value in both, in this one's order."""
        return [doc for doc in self.parts if doc in other.parts]

    def of(self, ids: Sequence[str]) -> list[float]:
        """The values of these documents, weighted by their numbers of parts."""
        if not ids:
            return []
        mean_count = sum(self.parts[doc][1] for doc in ids) / len(ids)
        return [self.parts[doc][0] / mean_count for doc in ids]

    def corrected(self, ids: Sequence[str]) -> list[float]:
        """The values of these documents without the noise of draws, to first order."""
        return [corrected(v, self.redrawn.get(doc, v)) for doc, v in zip(ids, self.of(ids), strict=True)]


def values_of(run: Run, score: Score, tasks: Sequence[str]) -> DocumentValues:
    """The values behind a score, from the sample lines of its tasks; with several tasks the ids are ``task/document``.

    Raises:
        RunError: a task has no sample lines.
    """
    values = DocumentValues(score.key, score.value)
    for task in tasks:
        run.require_samples(task)
        for row in run.samples(task):
            doc = str(row.get("doc_id"))
            values.add_line(score, row, f"{task}/{doc}" if len(tasks) > 1 else doc)
    return values


def mismatched_scores(run: Run, task: str) -> list[str]:
    """The scores of :func:`scores_of_lines` that are no longer the mean of the task's sample lines: one line each."""
    values = (values_of(run, score, [task]) for score in scores_of_lines(run, task))
    return [text for each in values if (text := each.problem()) is not None]


def scores_of_lines(run: Run, task: str) -> list[Score]:
    """The scores of a task whose intervals were computed from its sample lines by the run; none without a samples file.
    Those of an external result are computed from its present lines."""
    if run.is_external or run.samples_file(task) is None:
        return []
    return [score for score in run.scores() if score.task == task and score.method not in ("none", "normal")]


def score_of(run: Run, task: str, key: str | None) -> Score:
    """The score of that key, else the task's headline.

    Raises UsageError or RunError if there is none, IncompleteError if the run has no results.
    """
    run.require_block(IncompleteError)
    scores = {score.key: score for score in run.scores() if score.task == task}
    if not scores and task in run.tasks:
        raise RunError(f"task {task!r} of {run.path} has no score; all its documents failed")
    if not scores:
        raise unknown("task", task, {score.task for score in run.scores()}, place=run.name)
    if key is not None and key not in scores:
        raise unknown("score", key, scores, place=f"{task} of {run.name}")
    score = scores[key] if key is not None else run.headline(task)
    assert score is not None  # there are scores of the task
    return score


def require_same_harness(first: Run, second: Run) -> None:
    """Raises UsageError if the runs have different harnesses: their documents cannot be paired by number."""
    names = first.require_block().harness.name, second.require_block().harness.name
    if names[0] != names[1]:
        raise UsageError(
            f"the runs have different harnesses ({names[0]} and {names[1]}), which prompt and score differently;"
            f" see where: dare-bench report --agreement {first.path} {second.path}"
        )
