"""The report of a run judged by a baseline: scores, method, and the documents that differ; also as JUnit XML for
continuous integration, with a test case for each task and score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from dare_bench.analysis.baseline import Baseline, Value
from dare_bench.analysis.baseline_conditions import origin
from dare_bench.analysis.paired_tests import MCNEMAR, SIGNIFICANT
from dare_bench.analysis.regression import (
    EXCUSED_SHARE,
    ONE_SIDED,
    DocumentChange,
    JudgedScore,
    RegressionVerdict,
    excess_ties_message,
    paired_tests,
)
from dare_bench.formatting import NONE, about_points, bounds, number, p_value, points, score_text
from dare_bench.reports.comparison_report import detectable_drop
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph, ReportTable, narrowing
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import counted, visible
from dare_bench.types import TIE

_SHOWN = 20


def elements(verdict: RegressionVerdict, most: int | None = _SHOWN) -> Iterator[Element]:
    """The report, with at most ``most`` documents that differ (None: all)."""
    before, after = verdict.before.checkpoint, verdict.after.checkpoint
    yield Heading(headline(verdict))
    yield Paragraph(f"{verdict.run} ({after.name}) against the baseline of {before.name}")
    if verdict.reasons:
        yield Bullets(verdict.reasons)
    exact = [score for score in verdict.scores if score.mode == "exact"]
    paired = [score for score in verdict.scores if score.mode == "paired"]
    if exact:
        yield Paragraph(
            "Every answer, its forward passes and its values must be equal in"
            f" {counted(verdict.documents, 'document')}; excused, in less than {100 * EXCUSED_SHARE:g}% of them: near"
            f" ties (a change of the logits by {TIE:g} changes a decision) and documents that differ only in the number"
            " of forward passes."
        )
        yield narrowing(("task", "score", "baseline", "run", "documents", "differing values"), [
            (score.task, score.key, *_values_of(score), str(score.n), str(score.flips)) for score in exact
        ], ("documents", "score"))  # fmt: skip
    if paired:
        yield from _paired(verdict, paired)
    if verdict.groups:
        yield Paragraph("Groups (not judged, since their tasks are):")
        yield ReportTable(("group", "score", "baseline", "run"), [
            (name, key, *(score_text(value, are_shares(key, a, b)) for value in (a, b)))
            for name, key, a, b in verdict.groups
        ])  # fmt: skip
    if verdict.notes:
        yield Heading("Other differences", 3)
        yield Bullets(verdict.notes)
    yield from _documents("Documents that differ", list(map(flip_line, verdict.flips)), most)
    yield from _documents("Documents whose score changed", list(map(change_line, verdict.changed)), most)


def error_elements(run: str, reason: str) -> Iterator[Element]:
    """The report where a run could not be judged."""
    yield Heading("Not judged")
    yield Paragraph(f"{run}: {reason}" if run else reason)


def headline(verdict: RegressionVerdict) -> str:
    """The verdict; without a regression, with the smallest detectable drop of the least sensitive task."""
    if verdict.regressed:
        return "Regression"
    undecided = _undecided(verdict.scores)
    if not undecided:
        return "No regression"
    weakest = max(undecided, key=lambda score: (score.detectable == math.inf, score.is_share, score.detectable))
    documents = f"{counted(weakest.n, 'document')} of {weakest.task}"
    if weakest.detectable is None or weakest.detectable == math.inf:
        return f"No regression shown; no drop is detectable with {documents}"
    smallest = about_points(weakest.detectable, weakest.is_share)
    return f"No regression shown; the smallest drop detectable with {documents}: {smallest}"


def _undecided(scores: Sequence[JudgedScore]) -> list[JudgedScore]:
    """The scores for which the paired test shows neither a regression nor an improvement."""
    return [score for score in scores if score.detectable is not None and not score.regressed and not _is_better(score)]


def _paired(verdict: RegressionVerdict, scores: Sequence[JudgedScore]) -> Iterator[Element]:
    judged = sum(score.judged for score in scores)
    smallest, shares = verdict.smallest_effect, {score.is_share for score in scores if score.judged}
    least = points(smallest) if False not in shares else f"{smallest:g}"
    if shares == {True, False}:
        least += f" ({points(smallest)} where a score is a share)"
    adjusted = f", adjusted by Holm over {judged} tasks" if judged > 1 else ""
    yield Paragraph(
        f"A regression is a drop of at least {least} that is significant: paired by document, one-sided,"
        f" p at most {SIGNIFICANT:g}{adjusted}."
        + (" Differences of shares are in points." if any(score.is_share for score in scores) else "")
    )
    interval = f"{100 * ONE_SIDED:g}% interval"
    columns = ("task", "score", "baseline", "run", "gain", interval, "p of a drop", "documents", "verdict")
    yield narrowing(columns, list(map(_row, scores)), ("documents", "score", interval, "p of a drop"))
    if undecided := _undecided(scores):
        yield Bullets([
            f"{score.task} {score.key}: {detectable_drop(score.n, score.detectable or 0.0, score.is_share)}"
            for score in undecided
        ])  # fmt: skip


def _row(score: JudgedScore) -> tuple[str, ...]:
    difference, share = score.difference, score.is_share
    word = "REGRESSION" if score.regressed else "better" if _is_better(score) else "no regression"
    interval, documents = NONE, str(score.n)
    if difference is not None:
        gain = difference if score.higher_is_better else difference.reversed()
        interval = bounds(gain.lo, gain.hi, share, "+")
        documents = f"{score.n}: {gain.won} better, {gain.lost} worse"
    return (
        score.task, score.key, *_values_of(score), NONE if math.isnan(score.gain) else number(score.gain, share, "+"),
        interval, p_value(score.p), documents, word if score.judged else "not judged",
    )  # fmt: skip


def _values_of(score: JudgedScore) -> tuple[str, str]:
    return score_text(score.before, score.is_share), score_text(score.after, score.is_share)


def _is_better(score: JudgedScore) -> bool:
    difference = score.difference
    return (
        score.judged
        and difference is not None
        and difference.p is not None
        and difference.p / 2 <= SIGNIFICANT
        and score.gain > 0
    )


def _documents(title: str, lines: Sequence[str], most: int | None) -> Iterator[Element]:
    if not lines:
        return
    shown = lines if most is None else lines[:most]
    yield Heading(title, 3)
    yield Bullets(shown)
    if len(shown) < len(lines):
        yield Paragraph(f"{len(lines) - len(shown)} more; --json has all.")


def flip_line(change: DocumentChange) -> str:
    """A document that differs in exact mode, in one line."""
    texts = ["a different answer"] if change.answer else []
    if change.nfe:
        texts.append("{} ({} writing) -> {} ({} writing) forward passes".format(*change.nfe[0], *change.nfe[1]))
    near = {None: "not known to be a near tie", True: "a near tie", False: "no near tie"}[change.near_tie]
    differences = "; ".join([*texts, *_values(change)])
    return f"{change.task}/{change.doc_id}: {differences} ({near}{', excused' if change.excused else ''})"


def change_line(change: DocumentChange) -> str:
    """A document whose score changed, in one line."""
    return f"{change.task}/{change.doc_id}: {'; '.join(_values(change))}"


def _values(change: DocumentChange) -> Iterator[str]:
    return (f"{key} {_value_text(a)} -> {_value_text(b)}" for key, a, b in change.values)


def _value_text(value: Value) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def judged_line(score: JudgedScore) -> str:
    """One score in one line."""
    before, after = _values_of(score)
    documents = f"{counted(score.n, 'document')} ({score.mode})"
    return f"{score.task} {score.key}: baseline {before}, run {after}, {documents}"


def replaced(old: Baseline, new: Baseline) -> Iterator[str]:
    """The checkpoint and every score before and after the renewal of a baseline, one line each."""
    a, b = ({"checkpoint": f"{x.checkpoint.name} of {x.checkpoint.family}", **origin(x)} for x in (old, new))
    for name, before in a.items():
        yield f"{name}: {before}" + (" (unchanged)" if before == b[name] else f" -> {b[name]}")
    scores = _scores(old), _scores(new)
    for task, key in {**scores[0], **scores[1]}:
        values = [side.get((task, key), math.nan) for side in scores]
        share = are_shares(key, *(value for value in values if not math.isnan(value)))
        yield f"{task} {key}: {score_text(values[0], share)} -> {score_text(values[1], share)}"


def sensitivity(baseline: Baseline) -> Iterator[str]:
    """The drops that a paired check against a baseline detects at best, one line for each task."""
    tests = paired_tests(baseline, baseline, list(baseline.tasks))
    if not tests:
        return
    yield (
        "a check of another checkpoint, dtype or device is a paired test that may miss small drops; if no document"
        " gets better, it detects in 80% of cases:"
    )
    for name, test in tests.items():
        task, n = baseline.tasks[name], test.difference.n
        if test.difference.test != MCNEMAR:
            size = "depends on how much documents change, which a check states"
        else:
            drop = f"a drop of {about_points(test.detectable)} or more" if math.isfinite(test.detectable) else "no drop"
            size = f"{drop} ({counted(n, 'document')})"
        yield f"{name} {task.headline}: {size}"


def _scores(baseline: Baseline) -> dict[tuple[str, str], float]:
    scores = {(name, key): score.value for name, task in baseline.tasks.items() for key, score in task.scores.items()}
    return scores | {(group, key): value for group, keys in baseline.groups.items() for key, value in keys.items()}


def _score_record(score: JudgedScore) -> dict[str, Any]:
    """A score for ``--json``, where a regression is called red."""
    fields = {"red" if name == "regressed" else name: value for name, value in asdict(score).items()}
    return {**fields, "gain": score.gain}


def record(verdict: RegressionVerdict) -> dict[str, Any]:
    """For ``--json``."""
    return {
        "red": verdict.regressed,
        "headline": headline(verdict),
        "reasons": verdict.reasons,
        "run": verdict.run,
        "checkpoint": verdict.after.checkpoint.model_dump(),
        "baseline": verdict.before.checkpoint.model_dump(),
        "smallest_effect": verdict.smallest_effect,
        "scores": list(map(_score_record, verdict.scores)),
        "groups": [dict(zip(("group", "score", "before", "after"), group, strict=True)) for group in verdict.groups],
        "flips": [asdict(change) for change in verdict.flips],
        "changed": [asdict(change) for change in verdict.changed],
        "notes": verdict.notes,
    }


# Characters that XML 1.0 cannot represent, not even by a reference.
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_text(verdict: RegressionVerdict) -> str:
    """A JUnit file. Its cases are the scores, the answers of each task, and the number of excused documents."""
    return _suite(verdict.run, list(_cases(verdict)))


def junit_error(run: str, reason: str) -> str:
    """The text of a JUnit file where a run could not be judged."""
    case = ElementTree.Element("testcase", classname="dare-bench regress", name=_clean(run))
    ElementTree.SubElement(case, "error", message=_clean(reason))
    return _suite(run, [case])


def _suite(run: str, cases: Sequence[ElementTree.Element]) -> str:
    outcomes = (("failures", "failure"), ("errors", "error"), ("skipped", "skipped"))
    counts = {name: str(sum(case.find(tag) is not None for case in cases)) for name, tag in outcomes}
    name = _clean(f"dare-bench regress {run}")
    suite = ElementTree.Element("testsuite", {"name": name, "tests": str(len(cases)), **counts})
    suite.extend(cases)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def _cases(verdict: RegressionVerdict) -> Iterator[ElementTree.Element]:
    for score in verdict.scores:
        line = flip_line if score.mode == "exact" else change_line
        flips = [flip for flip in (*verdict.flips, *verdict.changed) if flip.task == score.task]
        of_score = [flip for flip in flips if any(key == score.key for key, _, _ in flip.values)]
        lines = [judged_line(score), *map(line, of_score)]
        if score.judged or score.regressed:
            yield _case(score.task, score.key, lines, failure=score.reason if score.regressed else "")
        else:
            yield _case(score.task, score.key, skipped=score.reason)
    for task in dict.fromkeys(score.task for score in verdict.scores if score.mode == "exact"):
        flips = [flip for flip in verdict.flips if flip.task == task]
        regressed = sum(not flip.excused for flip in flips)
        failure = f"{counted(regressed, 'document')} not the same as in the baseline" if regressed else ""
        yield _case(task, "answers", list(map(flip_line, flips)), failure)
    if verdict.documents:
        excused = [flip for flip in verdict.flips if flip.excused]
        failure = excess_ties_message(len(excused), verdict.documents)
        yield _case("all tasks", "ties", list(map(flip_line, excused)) if failure else (), failure)


def _case(task: str, name: str, lines: Sequence[str] = (), failure: str = "", skipped: str = "") -> ElementTree.Element:
    case = ElementTree.Element("testcase", classname=_clean(task), name=_clean(name))
    if skipped:
        ElementTree.SubElement(case, "skipped", message=_clean(skipped))
    elif failure:
        ElementTree.SubElement(case, "failure", message=_clean(failure)).text = _clean("\n".join(lines))
    elif lines:
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))
    return case


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
