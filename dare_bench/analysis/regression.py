"""Judge a run by a baseline: are all answers equal, or where that is not guaranteed, has a score dropped?

*Exact* mode, where samples are a function of checkpoint, settings and document: the same checkpoint and dtype, both
runs on a CPU, no approximate sampler (tier A). Every answer, its forward passes and every value must be equal. A
differing document is excused only as a near tie (in one of both runs) or where only its forward passes differ, since
decisions after the end of an answer are not recorded as ties. The excused ones must be less than ``EXCUSED_SHARE`` of
the documents.

*Paired* mode otherwise: no task's headline score may drop significantly, by at least the smallest effect of interest.
The test is exact or a permutation test on the documents' differences, one-sided, adjusted by Holm's method over the
tasks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dare_bench.analysis import baseline as baselines
from dare_bench.analysis.baseline import Baseline, BaselineTask, Value
from dare_bench.analysis.baseline_conditions import Mismatch, mismatches, notes
from dare_bench.analysis.paired_tests import SIGNIFICANT, Difference, holm, paired_difference, smallest_drop
from dare_bench.analysis.pairing import DocumentValues
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.formatting import p_value, points
from dare_bench.program import from_running, several
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import Program
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import counted, listed
from dare_bench.types import TIE

EXCUSED_SHARE = 0.01
SMALLEST_EFFECT = 0.01
ONE_SIDED = 1 - 2 * SIGNIFICANT
"""The level of a two-sided interval that agrees with the one-sided test."""
_NO_SCORE = "the run has no such score"
_CLOSE = {"rel_tol": 1e-4, "abs_tol": 1e-6}
_CLOSE_NATS = {"rel_tol": 1e-4, "abs_tol": 1e-3}
Mode = Literal["exact", "paired"]


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """A document that differs. ``values``: (score, before, after) of each differing value; ``answer``: does the answer
    differ? ``nfe``: forward passes and those that wrote a token, before and after, where they differ; ``near_tie``:
    could rounding have changed it, in one of both runs (None: not recorded)?"""

    task: str
    doc_id: str
    answer: bool
    nfe: tuple[tuple[int, int], tuple[int, int]] | None
    values: tuple[tuple[str, Value, Value], ...]
    near_tie: bool | None
    excused: bool


@dataclass(frozen=True, slots=True)
class JudgedScore:
    """One score of a task. ``before`` is the baseline's value, ``after`` the run's; ``flips`` counts documents whose
    value differs. In paired mode: the ``difference``, ``p`` of a drop (one-sided, adjusted), and ``detectable``, the
    drop that is detected with a power of 80 %. ``reason``: why it is ``regressed`` or not judged."""

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
    regressed: bool = False
    reason: str = ""

    @property
    def gain(self) -> float:
        """The improvement of the score; negative where it got worse."""
        return (self.after - self.before) * (1 if self.higher_is_better else -1)

    @property
    def is_share(self) -> bool:
        """Are its values shares, so that differences are in percentage points?"""
        return _are_shares(self.key, self.before, self.after)


def _are_shares(key: str, *values: float) -> bool:
    return are_shares(key, *(value for value in values if not math.isnan(value)))


@dataclass(frozen=True, slots=True)
class RegressionVerdict:
    """The verdict on a run. ``flips`` are differing documents of tasks in exact mode, ``changed`` those of other tasks
    whose headline value differs; ``reasons``: why the run has ``regressed``. ``groups``: name, score, before and after
    of groups, which are reported but not judged, since their tasks are."""

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
    def regressed(self) -> bool:
        return bool(self.reasons)

    @property
    def documents(self) -> int:
        """Documents of the tasks in exact mode."""
        return sum(self.before.tasks[task].n_docs for task in {s.task for s in self.scores if s.mode == "exact"})


def judge(
    run: Run | str | Path,
    baseline: Baseline | str | Path,
    smallest_effect: float = SMALLEST_EFFECT,
    *,
    any_program: bool = False,
) -> RegressionVerdict:
    """Judge a run by a baseline (or its file).

    Args:
        smallest_effect: smaller drops do not count as a regression in paired mode, on the scores' scale (0.01: one
            point).
        any_program: also judge answers of another program version.

    Raises:
        UsageError: no such baseline, or the run has other tasks, documents, prompts or decoding settings.
        IncompleteError: documents of the run failed, it has not finished, or it is limited where the baseline is not.
        RunError: no run, no sample lines or edited ones, answers of another program, or no score that can be judged.
    """
    run = run if isinstance(run, Run) else Run(run)
    old = baseline if isinstance(baseline, Baseline) else baselines.read(baseline)
    if not (math.isfinite(smallest_effect) and smallest_effect >= 0):
        raise UsageError(
            f"smallest effect {smallest_effect}: expected a number of at least 0, such as 0.01 (one point)"
        )
    new = complete_baseline(run, any_program)
    for name, task in old.tasks.items():
        if name in new.tasks and new.tasks[name].limited and not task.limited:
            documents = counted(new.tasks[name].n_docs, "document")
            raise IncompleteError(
                f"{run.path} has {documents} of {name}, the baseline all {task.n_docs}; evaluate without --limit"
            )
    if differences := mismatches(old, new):
        raise UsageError(_refusal(run, differences))
    verdict = compare_baselines(run.run_id, old, new, smallest_effect)
    if not any(score.judged for score in verdict.scores):
        scores = "; ".join(f"{score.task} {score.key} {score.before:g} -> {score.after:g}" for score in verdict.scores)
        raise RunError(
            f"{run.path}: no score can be judged, because no headline score is a mean over common documents ({scores})"
        )
    return verdict


def complete_baseline(run: Run, any_program: bool = False) -> Baseline:
    """A complete run as a baseline; raises IncompleteError, and RunError where another program generated answers."""
    if run.is_external:
        raise RunError(f"{run.path} is an external result; regress judges only runs of dare-bench: use compare")
    if run.status != "complete" or run.block is None:
        failures = run.block.failures if run.block else []
        reason = f"its status is {run.status}"
        if failures:
            first, documents = failures[0], counted(len(failures), "document")
            reason = f"{documents} failed, the first {first.task}/{first.doc_id}: {first.error}"
        raise IncompleteError(f"{run.path} is incomplete: {reason}; run the same command again to resume it")
    if not any_program and (reason := _program_difference(run.block.programs)):
        raise RunError(f"{run.path}: {reason}; evaluate with --fresh, or judge its answers as they are: --any-program")
    return baselines.of_run(run)


def _program_difference(programs: Sequence[Program]) -> str:
    """How the program that generated the answers differs from the running one; empty where it does not."""
    if not programs:
        return "the program that answered was not recorded"
    if difference := several(programs):
        return difference
    difference = from_running(programs[0].parts)
    return f"a different program version answered ({difference})" if difference else ""


def _refusal(run: Run, differences: Sequence[Mismatch]) -> str:
    texts = "; ".join(f"{item.name}: the baseline has {item.expected}, the run {item.seen}" for item in differences)
    renewable = all(item.renewable for item in differences)
    other = "renew the baseline: --update" if renewable else f"name a baseline of this {differences[0].name}"
    return f"{run.path} does not match the baseline. {texts}. Evaluate with the baseline's settings, or {other}"


def compare_baselines(
    name: str, old: Baseline, new: Baseline, smallest_effect: float = SMALLEST_EFFECT
) -> RegressionVerdict:
    """Compare two baselines without mismatches."""
    exact = [task for task in old.tasks if mode(old, new, task) == "exact"]
    paired = [task for task in old.tasks if task not in exact]
    flips = [flip for task in exact for flip in _flips(task, old.tasks[task], new.tasks[task])]
    scores = [score for task in exact for score in _exact_scores(task, old.tasks[task], new.tasks[task], flips)]
    scores += _paired_scores(old, new, paired, smallest_effect)
    if not scores:
        raise RunError(f"there is nothing to judge: no task of the baseline has a score ({', '.join(old.tasks)})")
    reasons = [
        *_unexcused(flips, sum(old.tasks[task].n_docs for task in exact)),
        *(score.reason for score in scores if score.regressed and (score.mode == "paired" or math.isnan(score.after))),
    ]
    groups = [
        (group, key, value, new.groups[group][key])
        for group, values in old.groups.items()
        for key, value in values.items()
        if key in new.groups.get(group, {})
    ]
    changed = [
        flip
        for task in paired
        if (headline := old.tasks[task].headline) in new.tasks[task].scores
        for flip in _flips(task, old.tasks[task], new.tasks[task], [headline])
        if flip.values
    ]
    unjudged = [  # reported, so that they are not overlooked
        f"{score.task} {score.key} is not judged, it is not a mean over common documents"
        for score in scores
        if not score.judged and score.key == old.tasks[score.task].headline
    ]
    all_notes = [*notes(old, new), *unjudged]
    return RegressionVerdict(name, old, new, smallest_effect, scores, flips, reasons, changed, all_notes, groups)


def mode(old: Baseline, new: Baseline, task: str) -> Mode:
    """``exact`` where equal answers are guaranteed for all documents of a task, otherwise ``paired``."""
    a, b = old.checkpoint, new.checkpoint
    same = (a.content_hash, a.adapter_hash, a.dtype) == (b.content_hash, b.adapter_hash, b.dtype)
    tiers = {old.tasks[task].tier, new.tasks[task].tier}
    return "exact" if same and {old.device, new.device} == {"cpu"} and tiers <= {"E0", "E1", "E2"} else "paired"


def _flips(
    name: str, old: BaselineTask, new: BaselineTask, keys: Sequence[str | None] = ()
) -> Iterator[DocumentChange]:
    """Documents that differ, with their values of the scores ``keys``, or of all common scores."""
    before, after = list(old.scores), list(new.scores)
    common = [
        (key, before.index(key), after.index(key)) for key in before if key in after and (not keys or key in keys)
    ]
    for doc, a in old.documents.items():
        b = new.documents[doc]
        pairs = [(key, a.values[i], b.values[j]) for key, i, j in common]
        values = tuple(pair for pair in pairs if not _same(pair[1], pair[2]))
        answer = not _same(a.answer, b.answer, _CLOSE_NATS)
        nfe = (a.nfe, b.nfe) if a.nfe is not None and b.nfe is not None and a.nfe != b.nfe else None
        if answer or values or nfe:
            near = _either(a.near_tie, b.near_tie)
            # Another value of an equal answer in as many passes is due to the scorer: no tie. Forward passes alone may
            # differ after the end of the answer, where there are no ties.
            only_passes = nfe is not None and not answer and not values
            tie = (answer or nfe is not None) and near is True
            yield DocumentChange(name, doc, answer, nfe, values, near, only_passes or tie)


def _either(*ties: bool | float | None) -> bool | None:
    """Is one of them a near tie? A number is a margin, of an older file; None: not known of either."""
    known = [tie if isinstance(tie, bool) else tie < TIE for tie in ties if tie is not None]
    return any(known) if known else None


def _same(a: Any, b: Any, close: dict[str, float] = _CLOSE) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_same(x, y, close) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, **close)
    return bool(a == b)


def _exact_scores(
    name: str, old: BaselineTask, new: BaselineTask, flips: Sequence[DocumentChange]
) -> Iterator[JudgedScore]:
    for key in old.scores:
        missing = key not in new.scores
        of_key = [flip for flip in flips if flip.task == name and any(value[0] == key for value in flip.values)]
        unexcused = [flip.doc_id for flip in of_key if not flip.excused]
        yield _score(
            name, key, "exact", old, new,
            n=len(old.documents), flips=len(of_key), regressed=bool(unexcused) or missing,
            reason=f"{name} {key}: {_NO_SCORE}" if missing else _in_documents("another value", unexcused),
        )  # fmt: skip


def _score(name: str, key: str, mode: Mode, old: BaselineTask, new: BaselineTask, **judgment: Any) -> JudgedScore:
    """A score of both, NaN where the run does not have it; ``judgment``: the other fields of the record."""
    score, after = old.scores[key], new.scores[key].value if key in new.scores else math.nan
    fields: dict[str, Any] = {"n": score.n, "higher_is_better": score.higher_is_better is not False, **judgment}
    return JudgedScore(name, key, mode, score.value, after, **fields)


def _unexcused(flips: Sequence[DocumentChange], documents: int) -> Iterator[str]:
    for task in dict.fromkeys(flip.task for flip in flips):
        if ids := [flip.doc_id for flip in flips if flip.task == task and not flip.excused]:
            yield f"{task}: {_in_documents('different answers, values or numbers of forward passes', ids)}"
    if text := excess_ties_message(sum(flip.excused for flip in flips), documents):
        yield text


def excess_ties_message(excused: int, documents: int) -> str:
    """The message where too many documents are excused; "" where they are not."""
    if not excused or excused < EXCUSED_SHARE * documents:
        return ""
    differ = "document differs" if excused == 1 else "documents differ"
    return (
        f"{excused} of {documents} {differ} only in floating-point ties or numbers of forward passes:"
        f" expected less than {100 * EXCUSED_SHARE:g}% of them"
    )


def _in_documents(text: str, ids: Sequence[str]) -> str:
    return f"{text} in documents {listed(ids, 10)}" if ids else ""


class PairedTest(NamedTuple):
    """The test of a task's headline; ``p`` and ``detectable`` as in :class:`JudgedScore`."""

    difference: Difference
    p: float | None
    detectable: float


def paired_tests(old: Baseline, new: Baseline, tasks: Sequence[str]) -> dict[str, PairedTest]:
    """The tests of those tasks whose headline is a mean over common documents."""
    pairs = {task: values for task in tasks if (values := _paired_values(old.tasks[task], new.tasks[task]))}
    differences = {task: paired_difference(*values, ONE_SIDED) for task, values in pairs.items()}
    p_values = [_drop_p(difference, old.tasks[task]) for task, difference in differences.items()]
    level = 1 - 2 * SIGNIFICANT / (sum(p is not None for p in p_values) or 1)
    return {
        task: PairedTest(differences[task], p, smallest_drop(*pairs[task], level))
        for task, p in zip(pairs, holm(p_values), strict=True)
    }


def _paired_scores(old: Baseline, new: Baseline, tasks: Sequence[str], smallest: float) -> Iterator[JudgedScore]:
    """All scores of these tasks; only their headlines are judged."""
    tests = paired_tests(old, new, tasks)
    for task in tasks:
        before, after = old.tasks[task], new.tasks[task]
        for key in before.scores:
            if key == before.headline:
                yield _headline_score(task, key, before, after, tests.get(task), smallest)
            else:
                reason = "not judged: not the task's headline"
                yield _score(task, key, "paired", before, after, judged=False, reason=reason)


def _headline_score(
    name: str, key: str, old: BaselineTask, new: BaselineTask, test: PairedTest | None, smallest: float
) -> JudgedScore:
    """The headline score of a task, judged by the paired test."""
    difference, p, detectable = test or (None, None, None)
    if lost := _missing_values_reason(old, new, key):
        reason = f"{name} {key}: {lost}"
        return _score(name, key, "paired", old, new, difference=difference, p=p, regressed=True, reason=reason)
    if difference is None:
        reason = "not judged: it is not a mean over common documents"
        return _score(name, key, "paired", old, new, judged=False, reason=reason)
    lower_is_better = old.scores[key].higher_is_better is False
    drop = difference.value if lower_is_better else -difference.value
    regressed = p is not None and p <= SIGNIFICANT and drop >= smallest - 1e-12
    size = points(drop) if _are_shares(key, old.scores[key].value, new.scores[key].value) else f"{drop:g}"
    change = f"rose by {size}, where lower is better" if lower_is_better else f"dropped by {size}"
    return _score(
        name, key, "paired", old, new,
        n=difference.n, flips=difference.won + difference.lost, difference=difference, p=p, detectable=detectable,
        regressed=regressed, reason=f"{name} {key} {change} (p {p_value(p)})" if regressed else "",
    )  # fmt: skip


def _missing_values_reason(old: BaselineTask, new: BaselineTask, key: str) -> str:
    """The values of a score that the baseline has and the run has not, as a reason; the rest alone is not judged."""
    if key not in new.scores:
        return _NO_SCORE
    before, after = _values(old, key), _values(new, key)
    return _in_documents("no longer has a value", [doc for doc in before.parts if doc not in after.parts])


def _drop_p(difference: Difference | None, task: BaselineTask) -> float | None:
    """The one-sided p of a change for the worse. The two-sided tests are symmetric."""
    if difference is None or difference.p is None or task.headline is None:
        return None
    if difference.value == 0:
        return 1.0
    worse = (difference.value > 0) == (task.scores[task.headline].higher_is_better is False)
    return difference.p / 2 if worse else 1 - difference.p / 2


def _paired_values(old: BaselineTask, new: BaselineTask) -> tuple[list[float], list[float]] | None:
    """The common documents' values of the headline, if the scores are means of them."""
    if old.headline is None or old.headline not in new.scores:
        return None
    first, second = _values(old, old.headline), _values(new, old.headline)
    ids = first.common(second)
    if not ids or any(first.parts[doc][1] != second.parts[doc][1] for doc in ids):
        return None
    complete = len(ids) == len(old.documents)
    if complete and any(values.problem(rel_tol=1e-4, abs_tol=1e-6) is not None for values in (first, second)):
        return None
    return first.of(ids), second.of(ids)


def _values(task: BaselineTask, key: str) -> DocumentValues:
    values, at = DocumentValues(key, task.scores[key].value), list(task.scores).index(key)
    for doc, row in task.documents.items():
        values.add(doc, row.values[at])
    return values
