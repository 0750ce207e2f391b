"""A run held against a baseline: are all answers the same, or where nobody promises that, has a score dropped?

*Exact*, where samples are a function of checkpoint, settings and document: the same checkpoint in the same dtype, both
runs on a CPU, no approximate sampler (tier A). Every answer, its forward passes and every value must be the same; a
document that differs is excused only as a floating-point tie: its recorded margin (the smaller of both runs') is below
``TIE``, or nothing but its forward passes differs (decisions behind the end of an answer have no margin), and all
excused ones are less than ``EXCUSED_SHARE`` of the documents.

*Paired* elsewhere: the headline score of each task may not drop, by an exact or permutation test on the documents'
differences (one-sided, adjusted by Holm's method over the tasks) and by at least the smallest effect that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dare_bench.analysis import baseline as baselines
from dare_bench.analysis.baseline import Baseline, BaselineTask, Value
from dare_bench.analysis.baseline_conditions import Unlike, notes, unlike
from dare_bench.analysis.paired_tests import Difference, holm, paired_difference, smallest_drop
from dare_bench.analysis.pairing import DocumentValues
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.formatting import p_value, points
from dare_bench.program import from_running, several
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Program
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import counted, listed

TIE = 1e-4
"""Margins below this are floating-point ties. In logits; float32 on CPUs differs by about 1e-5."""
EXCUSED_SHARE = 0.01
LEVEL = 0.05
SMALLEST_EFFECT = 0.01
_NO_SCORE = "the run has no such score"
_NO_MEAN = "not judged: it is no mean over documents that both have"
_CLOSE = {"rel_tol": 1e-4, "abs_tol": 1e-6}
_CLOSE_NATS = {"rel_tol": 1e-4, "abs_tol": 1e-3}
Mode = Literal["exact", "paired"]


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A document that differs. ``values``: (score, before, after) where a value does; ``answer``: whether the answer
    does; ``nfe``: before and after, its forward passes and those that
    wrote something, where they do; ``margin``: the smaller one of both runs (None:
    0.01 or more, or not recorded)."""

    task: str
    doc_id: str
    answer: bool
    nfe: tuple[tuple[int, int], tuple[int, int]] | None
    values: tuple[tuple[str, Value, Value], ...]
    margin: float | None
    excused: bool


@dataclass(frozen=True, slots=True)
class JudgedScore:
    """One score of a task. ``before`` and ``after`` are its values, the baseline's first; ``flips`` counts documents
    whose value differs. Of the paired mode: ``difference`` as measured, ``p`` of a drop (one-sided, adjusted), and
    ``detectable``: the drop that so many documents show four times in five. ``reason`` says why where ``red``, and
    where the score is not judged."""

    task: str
    key: str
    mode: Mode
    before: float
    after: float
    n: int
    higher_is_better: bool
    flips: int = 0
    judged: bool = True
    difference: Difference | None = None
    p: float | None = None
    detectable: float | None = None
    red: bool = False
    reason: str = ""

    @property
    def gain(self) -> float:
        """How much better the score became; negative where it dropped."""
        return (self.after - self.before) * (1 if self.higher_is_better else -1)

    @property
    def is_share(self) -> bool:
        """Are its values shares, so that a drop can be told in points of a hundred?"""
        return are_shares(self.key, *(value for value in (self.before, self.after) if not math.isnan(value)))


@dataclass(frozen=True, slots=True)
class RegressionVerdict:
    """What came of it. ``flips`` are of tasks in exact mode, ``changed`` the documents of the others whose headline
    value differs; ``reasons`` are empty unless ``red``; ``groups``: name, score, before and after of groups, which are
    told and never judged, for their tasks are."""

    run: str
    before: Baseline
    after: Baseline
    smallest_effect: float
    scores: list[JudgedScore]
    flips: list[DocumentChange]
    reasons: list[str]
    changed: list[DocumentChange] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    groups: list[tuple[str, str, float, float]] = field(default_factory=list)

    @property
    def red(self) -> bool:
        return bool(self.reasons)

    @property
    def documents(self) -> int:
        """Documents of the tasks that are judged exactly."""
        return sum(self.before.tasks[task].n_docs for task in {s.task for s in self.scores if s.mode == "exact"})


def judge(
    run: Run | str | Path,
    baseline: Baseline | str | Path,
    smallest_effect: float = SMALLEST_EFFECT,
    *,
    any_program: bool = False,
) -> RegressionVerdict:
    """Hold a run against a baseline (or its file).

    Args:
        smallest_effect: a drop below this is no regression in paired mode, on the scores' own scale (0.01: one point).
        any_program: judge also answers that another program than this one made.

    Raises:
        UsageError: no baseline there, or the run was asked otherwise: other tasks, documents, prompts, decoding.
        IncompleteError: documents of the run failed, it has not finished, or it is limited where the baseline is not.
        RunError: no run, one without sample lines or with edited ones, answers of another program, or nothing that can
            be judged.
    """
    run = run if isinstance(run, Run) else Run(run)
    old = baseline if isinstance(baseline, Baseline) else baselines.read(baseline)
    if not (math.isfinite(smallest_effect) and smallest_effect >= 0):
        raise UsageError(
            f"smallest effect {smallest_effect}: expected a number of at least 0, such as 0.01 (one point)"
        )
    now = complete(run, any_program)
    for task, own in old.tasks.items():
        if task in now.tasks and now.tasks[task].limited and not own.limited:
            has = counted(now.tasks[task].n_docs, "document")
            raise IncompleteError(
                f"{run.path} has {has} of {task}, the baseline all {own.n_docs}; evaluate without --limit"
            )
    if found := unlike(old, now):
        raise UsageError(refusal(run, found))
    verdict = compare(run.run_id, old, now, smallest_effect)
    if not any(one.judged for one in verdict.scores):
        told = "; ".join(f"{one.task} {one.key} {one.before:g} -> {one.after:g}" for one in verdict.scores)
        raise RunError(
            f"{run.path}: nothing can be judged, no headline is a mean over documents that both have ({told})"
        )
    return verdict


def complete(run: Run, any_program: bool = False) -> Baseline:
    """A run as a baseline, if nothing of it is missing and this program answered; raises IncompleteError, RunError."""
    if run.status != "complete" or run.block is None:
        failures = run.block.failures if run.block else []
        if failures:
            first = failures[0]
            why = f"{counted(len(failures), 'document')} failed, the first {first.task}/{first.doc_id}: {first.error}"
        else:
            why = f"its status is {run.status}"
        raise IncompleteError(f"{run.path} is incomplete: {why}; run the same command again, it goes on where it ended")
    if not any_program and (why := _foreign(run.block.programs)):
        raise RunError(f"{run.path}: {why}; evaluate with --fresh, or judge its answers as they are: --any-program")
    return baselines.of_run(run)


def _foreign(programs: Sequence[Program]) -> str:
    """Why the answers say nothing of the program that is running; empty where they do."""
    if not programs:
        return "which program answered was not recorded"
    if difference := several(programs):
        return difference
    difference = from_running(programs[0].parts)
    return f"another program than this one answered ({difference})" if difference else ""


def refusal(run: Run, differences: Sequence[Unlike]) -> str:
    """One line that names every difference."""
    texts = "; ".join(
        f"{difference.what}: the baseline has {difference.expected}, the run {difference.seen}"
        for difference in differences
    )
    todo = "; ".join(dict.fromkeys(difference.remedy for difference in differences))
    renew = ", or renew the baseline: --update" if all(difference.renewable for difference in differences) else ""
    return f"{run.path} was not asked what the baseline was. {texts}. {todo}{renew}"


def compare(name: str, old: Baseline, now: Baseline, smallest_effect: float = SMALLEST_EFFECT) -> RegressionVerdict:
    """Two baselines that were asked the same."""
    exact = [task for task in old.tasks if mode(old, now, task) == "exact"]
    flips = [flip for task in exact for flip in _flips(task, old.tasks[task], now.tasks[task])]
    scores = [score for task in exact for score in _exact(task, old.tasks[task], now.tasks[task], flips)]
    scores += _paired(old, now, [task for task in old.tasks if task not in exact], smallest_effect)
    if not scores:
        raise RunError(f"there is nothing to judge: no task of the baseline has a score ({', '.join(old.tasks)})")
    documents = sum(old.tasks[task].n_docs for task in exact)
    reasons = [
        *_unexcused(flips, documents),
        *(score.reason for score in scores if score.red and (score.mode == "paired" or math.isnan(score.after))),
    ]
    groups = [
        (group, key, value, now.groups[group][key])
        for group, keys in old.groups.items()
        for key, value in keys.items()
        if key in now.groups.get(group, {})
    ]
    changed = [
        flip
        for task, own in old.tasks.items()
        if task not in exact and own.headline in now.tasks[task].scores
        for flip in _flips(task, own, now.tasks[task], [own.headline])
        if flip.values
    ]
    remarks = [*notes(old, now), *_unjudged(old, scores)]
    return RegressionVerdict(name, old, now, smallest_effect, scores, flips, reasons, changed, remarks, groups)


def mode(old: Baseline, now: Baseline, task: str) -> Mode:
    """Is the same answer promised for every document of a task?"""
    a, b = old.checkpoint, now.checkpoint
    same = (a.content_hash, a.adapter_hash, a.dtype) == (b.content_hash, b.adapter_hash, b.dtype)
    tiers = {old.tasks[task].tier, now.tasks[task].tier}
    return "exact" if same and {old.device, now.device} == {"cpu"} and tiers <= {"E0", "E1", "E2"} else "paired"


def _flips(
    name: str, old: BaselineTask, now: BaselineTask, keys: Sequence[str | None] = ()
) -> Iterator[DocumentChange]:
    """Documents that differ; their values of the scores named, or of all that both have."""
    before, after = list(old.scores), list(now.scores)
    both = [(key, before.index(key), after.index(key)) for key in before if key in after and (not keys or key in keys)]
    for doc, a in old.documents.items():
        b = now.documents[doc]
        pairs = [(key, a.values[i], b.values[j]) for key, i, j in both]
        values = tuple(pair for pair in pairs if not _same(pair[1], pair[2]))
        answer = not _same(a.answer, b.answer, _CLOSE_NATS)
        nfe = (a.nfe, b.nfe) if a.nfe is not None and b.nfe is not None and a.nfe != b.nfe else None
        if answer or values or nfe:
            margin = min((margin for margin in (a.margin, b.margin) if margin is not None), default=None)
            # The same answer in as many passes has another value: that is the scorer, and no tie. Passes alone may
            # turn behind the end of the answer, where no margin is kept.
            tie = (nfe is not None and not answer and not values) or (
                (answer or nfe is not None) and margin is not None and margin < TIE
            )
            yield DocumentChange(name, doc, answer, nfe, values, margin, tie)


def _same(a: Any, b: Any, close: dict[str, float] = _CLOSE) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, close) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, **close)
    return bool(a == b)


def _exact(name: str, old: BaselineTask, now: BaselineTask, flips: Sequence[DocumentChange]) -> Iterator[JudgedScore]:
    for key, score in old.scores.items():
        other = now.scores.get(key)
        mine = [flip for flip in flips if flip.task == name and any(value[0] == key for value in flip.values)]
        open_ = [flip.doc_id for flip in mine if not flip.excused]
        yield JudgedScore(
            task=name,
            key=key,
            mode="exact",
            before=score.value,
            after=other.value if other else math.nan,
            n=len(old.documents),
            higher_is_better=score.higher_is_better is not False,
            flips=len(mine),
            red=bool(open_) or other is None,
            reason=f"{name} {key}: {_NO_SCORE}" if other is None else _named("another value in documents", open_),
        )


def _unexcused(flips: Sequence[DocumentChange], documents: int) -> Iterator[str]:
    for task in dict.fromkeys(flip.task for flip in flips):
        mine = [flip for flip in flips if flip.task == task and not flip.excused]
        if mine:
            yield f"{task}: " + _named(
                "another answer, value or number of forward passes in documents", [flip.doc_id for flip in mine]
            )
    if text := too_many(sum(flip.excused for flip in flips), documents):
        yield text


def too_many(excused: int, documents: int) -> str:
    """What is said of excused documents where they are too many; "" where they are not."""
    if not excused or excused < EXCUSED_SHARE * documents:
        return ""
    differ = "document differs" if excused == 1 else "documents differ"
    return (
        f"{excused} of {documents} {differ} only in floating-point ties or numbers of forward passes:"
        f" expected less than {100 * EXCUSED_SHARE:g} % of them"
    )


def _named(what: str, ids: Sequence[str]) -> str:
    return f"{what} {listed(ids, 10)}" if ids else ""


def _paired(old: Baseline, now: Baseline, tasks: Sequence[str], smallest: float) -> list[JudgedScore]:
    """Every score of these tasks; their headlines are judged, the others shown."""
    headlines = {task: own.headline for task, own in old.tasks.items() if task in tasks}
    pairs = {
        task: _paired_values(old.tasks[task], now.tasks[task], key) if key else None for task, key in headlines.items()
    }
    measured = {task: paired_difference(*values) if values else None for task, values in pairs.items()}
    p_values = [_drop_p(measured[task], old.tasks[task], key) for task, key in headlines.items()]
    adjusted = dict(zip(headlines, holm(p_values), strict=True))
    level = 1 - 2 * LEVEL / (sum(p is not None for p in p_values) or 1)
    scores = []
    for task in tasks:
        for key, score in old.tasks[task].scores.items():
            other = now.tasks[task].scores.get(key)
            judged = JudgedScore(
                task, key, "paired", score.value, other.value if other else math.nan, score.n,
                score.higher_is_better is not False, judged=False, reason="not judged: not the task's headline",
            )  # fmt: skip
            if key == headlines[task]:
                lost = _lost(old.tasks[task], now.tasks[task], key)
                judged = _judged(judged, lost, measured[task], adjusted[task], smallest)
                if (values := pairs[task]) is not None and not lost:
                    judged = replace(judged, detectable=smallest_drop(*values, level))
            scores.append(judged)
    return scores


def _judged(
    score: JudgedScore, lost: str, difference: Difference | None, p: float | None, smallest: float
) -> JudgedScore:
    """The headline score of a task, with what the paired test shows of it."""
    name = f"{score.task} {score.key}"
    if lost:
        return replace(score, judged=True, difference=difference, p=p, red=True, reason=f"{name}: {lost}")
    if difference is None:
        return replace(score, reason=_NO_MEAN)
    drop = -difference.value if score.higher_is_better else difference.value
    red = p is not None and p <= LEVEL and drop >= smallest - 1e-12
    by = points(drop) if score.is_share else f"{drop:g}"
    what = f"dropped by {by}" if score.higher_is_better else f"rose by {by}, where less is better"
    return replace(
        score, judged=True, n=difference.n, flips=difference.won + difference.lost, difference=difference, p=p,
        red=red, reason=f"{name} {what} (p {p_value(p)})" if red else "",
    )  # fmt: skip


def _lost(old: BaselineTask, now: BaselineTask, key: str) -> str:
    """What the baseline has of a score and the run has not; nothing is judged by the rest alone."""
    if key not in now.scores:
        return _NO_SCORE
    before, after = _values(old, key), _values(now, key)
    return _named("no value any more in documents", [doc for doc in before.parts if doc not in after.parts])


def _unjudged(old: Baseline, scores: Sequence[JudgedScore]) -> Iterator[str]:
    """Tasks whose headline nobody can judge, so that a look at them is not forgotten."""
    for score in scores:
        if not score.judged and score.key == old.tasks[score.task].headline:
            yield f"{score.task} {score.key} is not judged, it is no mean over documents that both have"


def _drop_p(difference: Difference | None, task: BaselineTask, key: str | None) -> float | None:
    """One-sided: of a change for the worse at least as large. The two-sided tests are symmetric."""
    if difference is None or difference.p is None or key is None:
        return None
    if difference.value == 0:
        return 1.0
    worse = (difference.value > 0) == (task.scores[key].higher_is_better is False)
    return difference.p / 2 if worse else 1 - difference.p / 2


def _paired_values(old: BaselineTask, now: BaselineTask, key: str) -> tuple[list[float], list[float]] | None:
    """Both runs' values of the documents that have one in both, if the scores are means of them."""
    if key not in now.scores:
        return None
    first, second = _values(old, key), _values(now, key)
    ids = first.common(second)
    if not ids or any(first.parts[doc][1] != second.parts[doc][1] for doc in ids):
        return None
    whole = len(ids) == len(old.documents)
    if whole and any(values.problem(rel_tol=1e-4, abs_tol=1e-6) is not None for values in (first, second)):
        return None
    return first.of(ids), second.of(ids)


def _values(task: BaselineTask, key: str) -> DocumentValues:
    values, at = DocumentValues(key, task.scores[key].value), list(task.scores).index(key)
    for doc, row in task.documents.items():
        values.add(doc, row.values[at])
    return values
