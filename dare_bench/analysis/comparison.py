"""Comparison of runs: all scores that they share, paired by document, with everything that weakens the comparison.

It holds data only, for a terminal, a file and a page. Of each changed document it keeps the id and the two values;
prompts and answers are read on request (:meth:`RunComparison.documents`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dare_bench.analysis.intervals import LEVEL, Interval, interval
from dare_bench.analysis.names import letter, run_names, unknown_text
from dare_bench.analysis.paired_tests import Difference, holm, smallest_drop
from dare_bench.analysis.pairing import NotPooledError, Pairing, pair, require_same_harness, score_of
from dare_bench.analysis.settings import MODEL, setting_text
from dare_bench.errors import IncompleteError, UsageError, unknown
from dare_bench.program import several
from dare_bench.runs.index import Document, DocumentIndex
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members, value_range
from dare_bench.runs.scores import Score, are_shares, headline
from dare_bench.runs.text import no_answer
from dare_bench.types import Decoding

ComparisonVerdict = Literal["better", "worse", "no difference shown", "cannot tell"]
_ENVIRONMENT = ("dare_bench", "torch", "gpu", "cpu")


def verdict_of(gain: float, p: float | None, level: float) -> ComparisonVerdict:
    """The verdict on the second run by its gain (positive is better) and the p of the difference."""
    if p is None:
        return "cannot tell"
    if p > 1 - level or gain == 0:
        return "no difference shown"
    return "better" if gain > 0 else "worse"


@dataclass(frozen=True, slots=True)
class ChangedDocument:
    """A document whose value changed. ``doc_id`` is as text."""

    task: str
    doc_id: str
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class ScoreComparison:
    """One score of two runs; ``first`` and ``second`` index :attr:`RunComparison.runs`.

    ``values`` are the means over the ``difference.n`` compared documents, ``scores`` their intervals. ``difference`` is
    second minus first, ``adjusted`` its p after Holm's adjustment over all comparisons. ``smallest_drop``: the drop
    that one unadjusted test detects with a power of 80 %. ``better`` and ``worse``: the changed documents, by the
    metric's direction. ``breaks``: why the scores are not comparable (only where the comparison was forced);
    ``warnings``: what else weakens it.
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
    level: float = LEVEL
    adjusted: float | None = None

    @property
    def gain(self) -> Difference:
        """The difference with the sign of a gain: positive is better."""
        return self.difference.reversed() if self.higher_is_better is False else self.difference

    @property
    def verdict(self) -> ComparisonVerdict:
        """The verdict on the second run at ``level``, after Holm's adjustment."""
        return verdict_of(self.gain.value, self.adjusted, self.level)

    @property
    def settings_text(self) -> str:
        """The settings that differ, beside the model and what follows from it, in one line; "" if none do."""
        other_model = any(name in self.settings for name in MODEL)
        texts = [
            f"{name} ({setting_text(a)} and {setting_text(b)})"
            for name, (a, b) in self.settings.items()
            if name not in MODEL and not (other_model and name in Decoding.id_fields)  # ids depend on the vocabulary
        ]
        return f"settings differ: {', '.join(texts)}" if texts else ""

    @property
    def is_share(self) -> bool:
        """Are both scores shares, to be shown in percent?"""
        return are_shares(self.key, *self.values)


@dataclass
class RunComparison:
    """All comparisons of ``runs``; the others were compared with the first run, unless all pairs were compared.

    ``left_out``: what could not be compared, with the reason.
    """

    runs: list[Run]
    names: list[str]
    items: list[ScoreComparison]
    left_out: list[str]
    level: float = LEVEL
    _indexes: dict[tuple[int, str], DocumentIndex | None] = field(default_factory=dict, repr=False)

    @property
    def forced(self) -> bool:
        """Are there scores that are not comparable?"""
        return any(item.breaks for item in self.items)

    def title(self, item: ScoreComparison) -> str:
        """A comparison's task, and its runs where there are more than two."""
        return item.task if len(self.runs) == 2 else f"{item.task}, {letter(item.first)} to {letter(item.second)}"

    def warning_lines(self) -> list[str]:
        """Each warning once, with the comparisons that it concerns unless it concerns all."""
        return self.once((item, text) for item in self.items for text in item.warnings)

    def settings_lines(self) -> list[str]:
        """Each text about settings that differ once, in the same way."""
        return self.once((item, item.settings_text) for item in self.items if item.settings_text)

    def stopped(self) -> list[str]:
        """A line where runs stopped by their scores: what then holds, and what does not."""
        stopped = [
            f"{name} at ±{block.until_halfwidth:g} points"
            for name, block in zip(self.names, (run.block for run in self.runs), strict=True)
            if block is not None and block.until_halfwidth is not None
        ]
        if not stopped:
            return []
        return [
            f"stopped by --until-halfwidth: {', '.join(stopped)}. The intervals of their scores hold wherever a run"
            " stops; p and the intervals of differences assume a number of documents that was fixed beforehand"
        ]

    def once(self, texts: Iterable[tuple[ScoreComparison, str]]) -> list[str]:
        """Each text once, with the comparisons that it concerns unless it concerns all."""
        items_of: dict[str, list[ScoreComparison]] = {}
        for item, text in texts:
            items_of.setdefault(text, []).append(item)
        return [
            text if len(items) == len(self.items) else f"{'; '.join(map(self.title, items))}: {text}"
            for text, items in items_of.items()
        ]

    def documents(self, item: ScoreComparison, changed: ChangedDocument) -> tuple[Document, Document]:
        """The document in the first and in the second run of ``item``, read from their files now."""
        return self._document(item.first, changed), self._document(item.second, changed)

    def score(self, item: ScoreComparison) -> Score:
        """The score that the first run of ``item`` reports, over all its documents."""
        return score_of(self.runs[item.first], item.task, item.key)

    def _document(self, run: int, changed: ChangedDocument) -> Document:
        if (run, changed.task) not in self._indexes:
            self._indexes = {key: value for key, value in self._indexes.items() if key[1] == changed.task}
            self._indexes[run, changed.task] = self.runs[run].index(changed.task)
        index = self._indexes[run, changed.task]
        assert index is not None  # the values were read from the same file
        return index.document(changed.doc_id)


def compare(
    runs: Sequence[Run],
    tasks: Sequence[str] | None = None,
    key: str | None = None,
    *,
    all_pairs: bool = False,
    force: bool = False,
    level: float = LEVEL,
) -> RunComparison:
    """Compare each run with the first (``all_pairs``: with all runs before it).

    Args:
        tasks: tasks or groups; runs with none of them are left out. None: all that the runs share, groups in place of
            their tasks.
        key: the score as "metric,filter"; None: each task's headline among the scores that both runs have.
        force: also compare scores that are not comparable; their ``breaks`` have the reasons.

    Raises:
        UsageError: fewer than two runs, the same run twice, different harnesses, no task or score in common, or
            (without ``force``) runs with different tasks or prompts.
        RunError: a run without sample lines.
        IncompleteError: a run without results.
    """
    runs = list(runs)
    if len(runs) < 2:
        raise UsageError(f"compare needs at least two runs, found {len(runs)}; give two run directories")
    paths = [run.path.resolve() for run in runs]
    if duplicate := next((path for path in paths if paths.count(path) > 1), None):
        raise UsageError(f"{duplicate} is given twice; give two different runs")
    for run in runs:
        run.require_block(IncompleteError)
    runs, left_out = _with_tasks(runs, tasks) if tasks else (runs, [])
    for run in runs:
        require_same_harness(runs[0], run)
    comparison = RunComparison(runs, run_names(runs), [], left_out, level)
    for a, b in sorted((i, j) for j in range(1, len(runs)) for i in range(j if all_pairs else 1)):
        for pairing in _pairings(comparison, a, b, tasks, key):
            if pairing.ids:
                comparison.items.append(_compared(runs, a, b, pairing, level))
            else:
                comparison.left_out.append(
                    f"{pairing.task}: {comparison.names[a]} and {comparison.names[b]} have no scored document in common"
                )
    comparison.left_out = list(dict.fromkeys(comparison.left_out))
    if not comparison.items:
        raise UsageError("nothing to compare: " + "; ".join(comparison.left_out or ["the runs share no task"]))
    if comparison.forced and not force:
        raise UsageError(_refusal(comparison))
    adjusted = holm([item.difference.p for item in comparison.items])
    comparison.items = [replace(item, adjusted=p) for item, p in zip(comparison.items, adjusted, strict=True)]
    return comparison


def _with_tasks(runs: Sequence[Run], tasks: Sequence[str]) -> tuple[list[Run], list[str]]:
    """The runs that have one of the tasks, and for each run what it lacks."""
    known = set().union(*map(_tasks_of, runs))
    for task in tasks:
        if task not in known:
            raise unknown("task", task, known)
    lacking = {run: [task for task in tasks if task not in _tasks_of(run)] for run in runs}
    kept = [run for run in runs if len(lacking[run]) < len(tasks)]
    if len(kept) < 2:
        raise UsageError(f"compare needs two runs with {' or '.join(tasks)}, but only {kept[0].name} has it")
    return kept, [
        f"{run.name} {'has no' if run in kept else 'is left out: it has no'} {' or '.join(names)}"
        for run, names in lacking.items()
        if names
    ]


def _tasks_of(run: Run) -> set[str]:
    return {*run.tasks, *(score.task for score in run.scores())}


def _pairings(
    comparison: RunComparison, a: int, b: int, tasks: Sequence[str] | None, key: str | None
) -> Iterator[Pairing]:
    first, second, names = comparison.runs[a], comparison.runs[b], comparison.names
    both = _tasks_of(first) & _tasks_of(second)
    queue = [task for task in tasks if task in both] if tasks else _shared_tasks(comparison, a, b)
    while queue:
        task = queue.pop(0)
        score_key = key if tasks else _shared_key(first, second, task, key)
        if score_key is None and not tasks:
            comparison.left_out.append(f"{task}: {names[a]} and {names[b]} have no {key or 'score'} in common")
            continue
        try:
            yield pair(first, second, task, score_key or _shared_key(first, second, task, None))
        except NotPooledError:
            # For example a plain mean over tasks of different sizes, to which documents contribute unequally.
            if tasks:
                raise
            comparison.left_out.append(
                f"{task}: its score is not the mean over its documents; its tasks are compared instead"
            )
            queue = [*(name for name in members(first.results, task) if _has_score(second, name)), *queue]


def _shared_tasks(comparison: RunComparison, a: int, b: int) -> list[str]:
    """Tasks and groups of both runs, a group in place of its tasks if both have it."""
    first, second, names = comparison.runs[a], comparison.runs[b], comparison.names
    shared: dict[str, None] = {}
    for run, name, other_name in ((first, names[a], names[b]), (second, names[b], names[a])):
        for task in run.top_level():
            parts = dict.fromkeys([task, *members(run.results, task)])
            both = [part for part in parts if _has_score(first, part) and _has_score(second, part)]
            shared |= dict.fromkeys([task] if task in both else both)
            if not both:
                comparison.left_out.append(f"{task}: only {name} has it, not {other_name}")
    inside = {part for task in shared for part in members(first.results, task) if part != task}
    return [task for task in shared if task not in inside]


def _has_score(run: Run, task: str) -> bool:
    return any(score.task == task for score in run.scores())


def _shared_key(first: Run, second: Run, task: str, key: str | None) -> str | None:
    """The score to compare: ``key`` if both runs have it, else the headline among the scores that both have."""
    second_keys = {score.key for score in second.scores() if score.task == task}
    shared = [score for score in first.scores() if score.task == task and score.key in second_keys]
    if key is not None:
        return key if any(score.key == key for score in shared) else None
    score = headline(shared, task)
    return score.key if score else None


def _compared(runs: Sequence[Run], a: int, b: int, pairing: Pairing, level: float) -> ScoreComparison:
    changed = [
        (ChangedDocument(*_task_and_id(runs[a], pairing.task, doc), x, y), y - x)
        for doc, x, y in zip(pairing.ids, pairing.first, pairing.second, strict=True)
        if x != y
    ]
    sign = -1 if pairing.higher_is_better is False else 1
    all_documents = not (pairing.only_first or pairing.only_second)
    score, score_second = pairing.scores
    return ScoreComparison(
        first=a,
        second=b,
        task=pairing.task,
        key=pairing.key,
        higher_is_better=pairing.higher_is_better,
        scores=(
            _interval(score, pairing.first, all_documents, level),
            _interval(score_second, pairing.second, all_documents, level),
        ),
        values=(statistics.fmean(pairing.first), statistics.fmean(pairing.second)),
        difference=pairing.difference(level),
        smallest_drop=smallest_drop(pairing.first, pairing.second, level),
        better=tuple(document for document, change in changed if sign * change > 0),
        worse=tuple(document for document, change in changed if sign * change < 0),
        only_first=pairing.only_first,
        only_second=pairing.only_second,
        settings=pairing.differences,
        breaks=tuple([*pairing.breaks, *pairing.notes] if pairing.breaks else ()),
        warnings=tuple(_warnings(runs[a], runs[b], pairing)),
        level=level,
    )


def _interval(score: Score, values: Sequence[float], all_documents: bool, level: float) -> Interval:
    """The reported interval where all documents of the run are compared, else one of the compared values."""
    if all_documents and score.level == level:
        return Interval(score.method, level, score.lo, score.hi, score.n)
    return interval(values, level).within(*value_range(score.key, statistics.fmean(values)))


def _task_and_id(run: Run, name: str, doc: str) -> tuple[str, str]:
    """The task and the id of a document of :class:`Pairing`."""
    tasks = members(run.results, name)
    if len(tasks) == 1:
        return tasks[0], doc
    task = max((task for task in tasks if doc.startswith(f"{task}/")), key=len)
    return task, doc[len(task) + 1 :]


def _warnings(first: Run, second: Run, pairing: Pairing) -> Iterator[str]:
    for run in (first, second):
        if run.is_external:
            yield f"{run.name} is {unknown_text(run)}"
        elif (failed := run.failed_documents(pairing.task)) or run.status != "complete":
            text = f"{no_answer(failed)} left out" if failed else "documents are missing"
            yield f"{run.name} is {run.status}: {text}"
    if pairing.only_first or pairing.only_second:
        yield (
            f"not the same documents: in both {len(pairing.ids)} (compared), only in the first {pairing.only_first},"
            f" only in the second {pairing.only_second}"
        )
    environments = []
    for run in (first, second):
        block = run.require_block()
        if not run.is_external:
            environments.append(block.environment.model_dump())
        if text := several(block.programs):
            yield f"{run.name} was {text}"
        if run.results_edited:
            yield f"{run.name}: the results file was changed after the run"
        for task in members(run.results, pairing.task):
            if run.edited(task):
                yield f"{run.name}: the samples of {task} were changed after the run"
    if "family" in pairing.differences:
        yield (
            "{} and {} are two families with different decoding settings; only settings that both have are"
            " compared".format(*pairing.differences["family"])
        )
    if len(environments) == 2:
        pairs = [(name.replace("_", "-"), *(values.get(name) for values in environments)) for name in _ENVIRONMENT]
        if differing := [f"{name} ({setting_text(a)} and {setting_text(b)})" for name, a, b in pairs if a != b]:
            yield "the environments differ: " + ", ".join(differing)
    if pairing.higher_is_better is None:
        yield f"the direction of {pairing.key} is not recorded: higher is assumed to be better"


def _refusal(comparison: RunComparison) -> str:
    broken = [item for item in comparison.items if item.breaks]
    item = broken[0]
    where = f"{item.task} of {comparison.names[item.first]} and {comparison.names[item.second]}"
    more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
    comparable = list(dict.fromkeys(item.task for item in comparison.items if not item.breaks))
    others = f"; comparable: --task {','.join(comparable[:3])}" if comparable else ""
    return f"not comparable: {where}: {'; '.join(item.breaks)}{more}{others}; compare them anyway: --force"
