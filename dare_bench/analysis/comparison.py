"""Runs compared with each other: every score they share, paired by document, with all that weakens the comparison.

Only data, for a terminal, a file and a page alike. Of each document that changed its id and its two values are kept;
what was asked and answered is read when somebody asks for it (:meth:`RunComparison.documents`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dare_bench.analysis.intervals import Interval, interval
from dare_bench.analysis.names import letter, run_names
from dare_bench.analysis.paired_tests import Difference, holm, smallest_drop
from dare_bench.analysis.pairing import NotPooledError, Pairing, pair, same_harness, score_of
from dare_bench.analysis.settings import MODEL, shown
from dare_bench.errors import IncompleteError, UsageError
from dare_bench.program import several
from dare_bench.runs.index import Document, SampleIndex
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members, value_range
from dare_bench.runs.scores import Score, are_shares, headline
from dare_bench.runs.text import no_answer
from dare_bench.types import Decoding

ComparisonVerdict = Literal["better", "worse", "no difference shown", "cannot tell"]
_SURROUNDINGS = ("dare_bench", "torch", "gpu", "cpu")


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document whose value changed. ``doc_id`` is as text."""

    task: str
    doc_id: str
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """One score of two runs, which are numbered as in :attr:`RunComparison.runs`.

    ``values``: the means over the ``difference.n`` documents that were compared, and ``scores`` their intervals.
    ``difference`` is second minus first, ``adjusted`` its p after Holm's adjustment over all comparisons made here.
    ``smallest_drop``: what so many documents would show in four of five cases, by one unadjusted test. ``better`` and
    ``worse``: the documents that changed, by the metric's own direction. ``breaks``: why the scores do not compare
    (filled only where the comparison was forced); ``warnings``: what else weakens it.
    """

    first: int
    second: int
    task: str
    key: str
    higher_is_better: bool | None
    scores: tuple[Interval, Interval]
    values: tuple[float, float]
    difference: Difference
    smallest_drop: float
    better: tuple[ChangedDocument, ...]
    worse: tuple[ChangedDocument, ...]
    only_first: int
    only_second: int
    settings: dict[str, tuple[Any, Any]]
    breaks: tuple[str, ...]
    warnings: tuple[str, ...]
    level: float = 0.95
    adjusted: float | None = None

    @property
    def gain(self) -> float:
        """The difference with the sign that a gain has: positive is better."""
        return -self.difference.value if self.higher_is_better is False else self.difference.value

    @property
    def verdict(self) -> ComparisonVerdict:
        """Of the second run, at ``level``, after Holm's adjustment."""
        if self.adjusted is None:
            return "cannot tell"
        if self.adjusted > 1 - self.level or self.gain == 0:
            return "no difference shown"
        return "better" if self.gain > 0 else "worse"

    @property
    def is_share(self) -> bool:
        """Are both scores shares, so that they can be shown as percent?"""
        return are_shares(self.key, *self.values)


@dataclass
class RunComparison:
    """All comparisons of ``runs``; the first of them is the reference unless every pair was compared.

    ``left_out``: what could not be compared, and why.
    """

    runs: list[Run]
    names: list[str]
    items: list[ScoreComparison]
    left_out: list[str]
    level: float = 0.95
    _indexes: dict[tuple[int, str], SampleIndex | None] = field(default_factory=dict, repr=False)

    @property
    def forced(self) -> bool:
        """Is there a score among them that does not compare?"""
        return any(item.breaks for item in self.items)

    def title(self, item: ScoreComparison) -> str:
        """A comparison's task, and its runs where there are more than two."""
        return item.task if len(self.runs) == 2 else f"{item.task}, {letter(item.first)} to {letter(item.second)}"

    def warning_lines(self) -> list[str]:
        """Every warning once, with the comparisons that it is about where it is not about all."""
        items_of: dict[str, list[ScoreComparison]] = {}
        for item in self.items:
            for text in item.warnings:
                items_of.setdefault(text, []).append(item)
        return [
            text if len(items) == len(self.items) else f"{'; '.join(map(self.title, items))}: {text}"
            for text, items in items_of.items()
        ]

    def documents(self, item: ScoreComparison, flip: ChangedDocument) -> tuple[Document, Document]:
        """The document as the first and as the second run of ``item`` has it, read from their files now."""
        return self._document(item.first, flip), self._document(item.second, flip)

    def score(self, item: ScoreComparison) -> Score:
        """What the first run of ``item`` reports, over all its own documents."""
        return score_of(self.runs[item.first], item.task, item.key)

    def _document(self, run: int, flip: ChangedDocument) -> Document:
        if (run, flip.task) not in self._indexes:
            self._indexes = {key: value for key, value in self._indexes.items() if key[1] == flip.task}
            self._indexes[run, flip.task] = self.runs[run].index(flip.task)
        index = self._indexes[run, flip.task]
        assert index is not None  # the values were read from the same file
        return index.document(flip.doc_id)


def compare(
    runs: Sequence[Run],
    tasks: Sequence[str] | None = None,
    key: str | None = None,
    *,
    all_pairs: bool = False,
    force: bool = False,
    level: float = 0.95,
) -> RunComparison:
    """Compare each run with the first (``all_pairs``: with every one before it).

    Args:
        tasks: tasks or groups; None: all that the runs share, groups in place of their tasks.
        key: the score as "metric,filter"; None: each task's headline among the scores that both runs have.
        force: compare also what does not compare; its ``breaks`` say why it does not.

    Raises:
        UsageError: fewer than two runs or one of them twice, another harness, no task or score in common, or (without
            ``force``) runs that were asked different things.
        RunError: a run without sample lines.
        IncompleteError: a run without results.
    """
    runs = list(runs)
    if len(runs) < 2:
        raise UsageError(f"compare needs at least two runs, found {len(runs)}; give two run directories")
    places = [run.path.resolve() for run in runs]
    if len(set(places)) < len(places):
        twice = next(path for path in places if places.count(path) > 1)
        raise UsageError(f"{twice} is given twice; give two different runs")
    for run in runs:
        run.require_block(IncompleteError)
    for run in runs[1:]:
        same_harness(runs[0], run)
    comparison = RunComparison(runs, run_names(runs), [], [], level)
    pairs = [(a, b) for b in range(1, len(runs)) for a in range(b if all_pairs else 1)]
    for a, b in sorted(pairs):
        for pairing in _pairings(comparison, a, b, tasks, key):
            if pairing.ids:
                comparison.items.append(_compared(runs, a, b, pairing, level))
            else:
                comparison.left_out.append(
                    f"{pairing.task}: {comparison.names[a]} and {comparison.names[b]} share no scored document"
                )
    comparison.left_out = list(dict.fromkeys(comparison.left_out))
    if not comparison.items:
        raise UsageError("nothing to compare: " + "; ".join(comparison.left_out or ["the runs share no task"]))
    if comparison.forced and not force:
        raise UsageError(_refusal(comparison))
    adjusted = holm([item.difference.p for item in comparison.items])
    comparison.items = [replace(item, adjusted=p) for item, p in zip(comparison.items, adjusted, strict=True)]
    return comparison


def _pairings(
    comparison: RunComparison, a: int, b: int, tasks: Sequence[str] | None, key: str | None
) -> Iterator[Pairing]:
    first, second, names = comparison.runs[a], comparison.runs[b], comparison.names
    waiting = list(tasks) if tasks else _shared(comparison, a, b)
    while waiting:
        task = waiting.pop(0)
        own = key if tasks else _key(first, second, task, key)
        if own is None and not tasks:
            comparison.left_out.append(f"{task}: {names[a]} and {names[b]} have no {key or 'score'} in common")
            continue
        try:
            yield pair(first, second, task, own or _key(first, second, task, None))
        except NotPooledError:
            # A plain mean over tasks of different sizes, say: there a document has no value of its own.
            if tasks:
                raise
            comparison.left_out.append(
                f"{task}: its score is not the mean over its documents; its tasks are compared instead"
            )
            waiting = [*(name for name in members(first.results, task) if _has(second, name)), *waiting]


def _shared(comparison: RunComparison, a: int, b: int) -> list[str]:
    """Tasks and groups of both runs, a group in place of its tasks if both have it."""
    first, second, names = comparison.runs[a], comparison.runs[b], comparison.names
    shared: dict[str, None] = {}
    for run, here, there in ((first, a, b), (second, b, a)):
        for name in run.top_level():
            parts = dict.fromkeys([name, *members(run.results, name)])
            both = [part for part in parts if _has(first, part) and _has(second, part)]
            shared |= dict.fromkeys([name] if name in both else both)
            if not both:
                comparison.left_out.append(f"{name}: {names[here]} has it, {names[there]} has not")
    inside = {part for name in shared for part in members(first.results, name) if part != name}
    return [name for name in shared if name not in inside]


def _has(run: Run, task: str) -> bool:
    return any(score.task == task for score in run.scores())


def _key(first: Run, second: Run, task: str, key: str | None) -> str | None:
    """The score to compare: the one asked for if both have it, else the headline among those that both have."""
    theirs = {score.key for score in second.scores() if score.task == task}
    both = [score for score in first.scores() if score.task == task and score.key in theirs]
    if key is not None:
        return key if any(score.key == key for score in both) else None
    score = headline(both, task)
    return score.key if score else None


def _compared(runs: Sequence[Run], a: int, b: int, pairing: Pairing, level: float) -> ScoreComparison:
    difference = pairing.difference(level)
    changed = [
        (ChangedDocument(*_place(runs[a], pairing.task, doc), x, y), y - x)
        for doc, x, y in zip(pairing.ids, pairing.first, pairing.second, strict=True)
        if x != y
    ]
    sign = -1 if pairing.higher_is_better is False else 1
    whole = not (pairing.only_first or pairing.only_second)
    score, other_score = pairing.scores
    return ScoreComparison(
        first=a,
        second=b,
        task=pairing.task,
        key=pairing.key,
        higher_is_better=pairing.higher_is_better,
        scores=(_interval(score, pairing.first, whole, level), _interval(other_score, pairing.second, whole, level)),
        values=(statistics.fmean(pairing.first), statistics.fmean(pairing.second)),
        difference=difference,
        smallest_drop=smallest_drop(pairing.first, pairing.second, level),
        better=tuple(flip for flip, change in changed if sign * change > 0),
        worse=tuple(flip for flip, change in changed if sign * change < 0),
        only_first=pairing.only_first,
        only_second=pairing.only_second,
        settings=pairing.differences,
        breaks=tuple([*pairing.breaks, *pairing.notes] if pairing.breaks else ()),
        warnings=tuple(_warnings(runs[a], runs[b], pairing)),
        level=level,
    )


def _interval(score: Score, values: Sequence[float], whole: bool, level: float) -> Interval:
    """The run's own interval where all its documents are compared, else one of those that are."""
    if whole and score.level == level:
        return Interval(score.method, level, score.lo, score.hi, score.n)
    return interval(values, level).within(*value_range(score.key, statistics.fmean(values)))


def _place(run: Run, task: str, doc: str) -> tuple[str, str]:
    """The task and the id of a document as :class:`Pairing` names it."""
    tasks = members(run.results, task)
    if len(tasks) == 1:
        return tasks[0], doc
    own = max((name for name in tasks if doc.startswith(f"{name}/")), key=len)
    return own, doc[len(own) + 1 :]


def _warnings(first: Run, second: Run, pairing: Pairing) -> Iterator[str]:
    """What weakens a comparison without forbidding it."""
    for run, failed in zip((first, second), pairing.failures, strict=True):
        if run.status != "complete" or failed:
            text = f"{no_answer(failed)} left out" if failed else "not all of it is there"
            yield f"{run.run_id} is {run.status}: {text}"
    if pairing.only_first or pairing.only_second:
        yield (
            f"not the same documents: compared are the {len(pairing.ids)} that both have, {pairing.only_first} are only"
            f" in the first, {pairing.only_second} only in the second"
        )
    for run in (first, second):
        assert run.block is not None
        if text := several(run.block.programs):
            yield f"{run.run_id} was {text}"
        if run.results_edited:
            yield f"{run.run_id}: the file of results was changed after the run"
        for task in members(run.results, pairing.task):
            if run.edited(task):
                yield f"{run.run_id}: the samples of {task} were changed after the run"
    if "family" in pairing.differences:
        yield (
            "{} and {} are two families: each decodes by settings of its own, and only those that both have are"
            " compared".format(*pairing.differences["family"])
        )
    model = any(name in pairing.differences for name in MODEL)
    others = [
        f"{name} ({shown(a)} and {shown(b)})"
        for name, (a, b) in pairing.differences.items()
        if name not in MODEL and not (model and name in Decoding.id_fields)  # token ids belong to the vocabulary
    ]
    if others:
        yield "settings differ: " + ", ".join(others)
    assert first.block is not None and second.block is not None
    here, there = (run.block.environment.model_dump() for run in (first, second) if run.block is not None)
    surroundings = [
        f"{name.replace('_', '-')} ({shown(here.get(name))} and {shown(there.get(name))})"
        for name in _SURROUNDINGS
        if here.get(name) != there.get(name)
    ]
    if surroundings:
        yield "made in other surroundings: " + ", ".join(surroundings)
    if pairing.higher_is_better is None:
        yield f"whether more is better is not recorded for {pairing.key}: taken as better"


def _refusal(comparison: RunComparison) -> str:
    """One line on what was asked differently, and how to go on."""
    broken = [item for item in comparison.items if item.breaks]
    item = broken[0]
    where = f"{item.task} of {comparison.names[item.first]} and {comparison.names[item.second]}"
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    sound = list(dict.fromkeys(item.task for item in comparison.items if not item.breaks))
    others = f"; these compare: --task {','.join(sound[:3])}" if sound else ""
    return f"not comparable: {where}: {'; '.join(item.breaks)}{more}{others}; --force compares all the same"
