"""Differences of two runs whose documents cannot be paired, since sample lines are absent: from their intervals."""

from __future__ import annotations

from dare_bench.analysis.intervals import LEVEL, difference_bounds
from dare_bench.analysis.paired_tests import Difference
from dare_bench.analysis.standing import DatedScore, question_difference
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.runs.scores import Score

_REASONS = {
    "definition": "the task's prompts, filters or scorer changed",
    "prompts": "the runs had other examples, documents or another chat template",
}


def lacks_samples(entry: BoardEntry, task: str) -> bool:
    """Are there no sample lines of a task, or of a group's tasks?"""
    return not entry.files or (task in entry.tasks and task not in entry.files)


def unpaired_difference(first: BoardEntry, second: BoardEntry, task: str, key: str) -> tuple[Difference, Score] | str:
    """The difference of one score (second minus first) as if the two had answered different documents, and the second
    score; or why they are not comparable."""
    scores = [entry.score(task, key) for entry in (first, second)]
    one, two = scores
    if one is None or two is None:
        return f"one of the runs has no {key}"
    if first.harness != second.harness:
        return f"the harnesses differ: {first.harness} and {second.harness}"
    dated = [
        DatedScore(score, entry.created, entry.complete, entry.contexts[task])
        for score, entry in ((one, first), (two, second))
    ]
    if (kind := question_difference(dated[1], dated[0])) is not None:
        return _REASONS[kind]
    value, lo, hi = two.value - one.value, None, None
    if one.lo is not None and one.hi is not None and two.lo is not None and two.hi is not None:
        lo, hi = difference_bounds((two.value, two.lo, two.hi), (one.value, one.lo, one.hi))
    p = p_of_bounds(value, lo, hi)
    method = "unpaired, from both intervals"
    return Difference(value, lo, hi, LEVEL, method, min(one.n, two.n), p, "the unpaired interval", 0, 0), two


def p_of_bounds(value: float, lo: float | None, hi: float | None) -> float | None:
    """The two-sided p of a difference from the bound of its interval towards zero (Altman and Bland, BMJ 343, 2011,
    d2304)."""
    if lo is None or hi is None:
        return None
    from scipy.stats import norm

    half = value - lo if value > 0 else hi - value
    if half <= 0:
        return 1.0 if value == 0 else None
    return float(2 * norm.sf(abs(value) / half * norm.ppf(0.5 + LEVEL / 2)))
