"""A verdict told: what was judged and how, what differs, and the documents."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from dare_bench.reports.baseline import Baseline, Value
from dare_bench.reports.regress import EXCUSED_SHARE, LEVEL, TIE, Flip, Judged, Verdict
from dare_bench.reports.text import Bullets, Heading, Line, Piece, Table, points
from dare_bench.runs.scores import are_shares
from dare_bench.runs.text import counted, score_text

_SHOWN = 20


def pieces(verdict: Verdict, most: int | None = _SHOWN) -> Iterator[Piece]:
    """The report; of the documents that differ ``most`` are shown (None: all)."""
    before, after = verdict.before.checkpoint, verdict.after.checkpoint
    yield Heading(headline(verdict))
    yield Line(f"{verdict.run} ({after.name}) against the baseline of {before.name}")
    if verdict.reasons:
        yield Bullets(verdict.reasons)
    exact = [one for one in verdict.scores if one.mode == "exact"]
    paired = [one for one in verdict.scores if one.mode == "paired"]
    if exact:
        yield Line(
            "Every answer, its forward passes and its values must be the same in"
            f" {counted(verdict.documents, 'document')}; excused, in less than {100 * EXCUSED_SHARE:g} % of them: ties"
            f" (a margin below {TIE:g}), and nothing but another number of forward passes."
        )
        yield Table(("task", "score", "baseline", "run", "documents", "other values"), [
            (one.task, one.key, *_values_of(one), str(one.n), str(one.flips)) for one in exact
        ])  # fmt: skip
    if paired:
        yield from _paired(verdict, paired)
    if verdict.groups:
        yield Line("Groups (not judged, for their tasks are):")
        yield Table(("group", "score", "baseline", "run"), [
            (name, key, *(score_text(value, are_shares(key, a, b)) for value in (a, b)))
            for name, key, a, b in verdict.groups
        ])  # fmt: skip
    if verdict.notes:
        yield Heading("What else differs", 3)
        yield Bullets(verdict.notes)
    yield from _documents("Documents that differ", list(map(flip_line, verdict.flips)), most)
    yield from _documents("Documents whose score changed", list(map(change_line, verdict.changed)), most)


def headline(verdict: Verdict) -> str:
    """The verdict, and where it is that nothing was shown, the smallest drop that would have been: that of the task
    which could show least."""
    if verdict.red:
        return "Regression"
    unseen = _unseen(verdict.scores)
    if not unseen:
        return "No regression"
    weakest = max(unseen, key=lambda one: (one.detectable == math.inf, one.is_share, one.detectable))
    documents = f"{counted(weakest.n, 'document')} of {weakest.task}"
    if weakest.detectable == math.inf:
        return f"No regression shown; {documents} can show no drop at all"
    return f"No regression shown; the smallest drop that {documents} can show: {_least(weakest)}"


def _unseen(scores: Sequence[Judged]) -> list[Judged]:
    """The scores of which a paired test has shown nothing."""
    return [one for one in scores if one.detectable is not None and not one.red and not _better(one)]


def _paired(verdict: Verdict, scores: Sequence[Judged]) -> Iterator[Piece]:
    judged = sum(one.judged for one in scores)
    smallest, shares = verdict.smallest_effect, {one.is_share for one in scores if one.judged}
    least = points(smallest) if False not in shares else f"{smallest:g}"
    if shares == {True, False}:
        least += f" ({points(smallest)} where a score is a share)"
    yield Line(
        f"A regression is a drop of at least {least} that is significant: paired by"
        f" document, one-sided, p at most {LEVEL:g}{f', adjusted by Holm over {judged} tasks' if judged > 1 else ''}."
        + (" Differences of shares are in points." if any(one.is_share for one in scores) else "")
    )
    yield Table(("task", "score", "baseline", "run", "better by", "interval", "p of a drop", "documents", "verdict"), [
        _row(one) for one in scores
    ])  # fmt: skip
    if unseen := _unseen(scores):
        yield Bullets([f"{one.task} {one.key}: {_drop(one)}" for one in unseen])


def _row(one: Judged) -> tuple[str, ...]:
    found, sign = one.difference, 1 if one.higher_is_better else -1
    bounds = sorted(sign * x for x in (found.lo, found.hi) if x is not None) if found else []
    word = "REGRESSION" if one.red else ("better" if _better(one) else "no regression") if one.judged else "not judged"
    return (
        one.task, one.key, *_values_of(one), "—" if math.isnan(one.gain) else _signed(one, one.gain),
        f"{_signed(one, bounds[0])} to {_signed(one, bounds[1])}" if len(bounds) == 2 else "—",
        "—" if one.p is None else f"{one.p:.2g}",
        f"{one.n}: {found.won if sign > 0 else found.lost} better, {found.lost if sign > 0 else found.won} worse"
        if found else str(one.n),
        word,
    )  # fmt: skip


def _values_of(one: Judged) -> tuple[str, str]:
    return score_text(one.before, one.is_share), score_text(one.after, one.is_share)


def _signed(one: Judged, difference: float) -> str:
    """A difference: of shares in points."""
    return f"{100 * difference:+.2f}" if one.is_share else f"{difference:+.4g}"


def _better(one: Judged) -> bool:
    found = one.difference
    return found is not None and found.p is not None and found.p / 2 <= LEVEL and one.gain > 0


def _drop(one: Judged) -> str:
    if one.detectable == math.inf:
        return f"{counted(one.n, 'document')} can show no drop: too few"
    return f"what {counted(one.n, 'document')} can show: a drop of {_least(one)} or more (found in 4 of 5 such tests)"


def _least(one: Judged) -> str:
    assert one.detectable is not None
    return points(one.detectable) if one.is_share else f"{one.detectable:.4g}"


def _documents(title: str, lines: Sequence[str], most: int | None) -> Iterator[Piece]:
    if not lines:
        return
    shown = lines if most is None else lines[:most]
    yield Heading(title, 3)
    yield Bullets(shown)
    if len(shown) < len(lines):
        yield Line(f"{len(lines) - len(shown)} more; --json has all.")


def flip_line(flip: Flip) -> str:
    """A document that should not differ, in one line."""
    answer = ["another answer"] if flip.answer else []
    passes = (
        ["{} ({} writing) -> {} ({} writing) forward passes".format(*flip.nfe[0], *flip.nfe[1])] if flip.nfe else []
    )
    margin = "margin 0.01 or more, or not recorded" if flip.margin is None else f"margin {flip.margin:g}"
    what = "; ".join([*answer, *passes, *_values(flip)])
    return f"{flip.task}/{flip.doc_id}: {what} ({margin}{', excused' if flip.excused else ''})"


def change_line(flip: Flip) -> str:
    """A document whose score changed, in one line."""
    return f"{flip.task}/{flip.doc_id}: {'; '.join(_values(flip))}"


def _values(flip: Flip) -> Iterator[str]:
    return (f"{key} {_shown(a)} -> {_shown(b)}" for key, a, b in flip.values)


def judged_line(one: Judged) -> str:
    """One score in one line."""
    return (
        "{} {}: baseline {}, run {}, ".format(one.task, one.key, *_values_of(one))
        + f"{counted(one.n, 'document')} ({one.mode})"
    )


def replaced(old: Baseline, new: Baseline) -> Iterator[str]:
    """What a renewed baseline is of, and every score, before and after: a line each."""
    a, b = old.checkpoint, new.checkpoint
    for name, before, after in (
        ("checkpoint", f"{a.name} of {a.family}", f"{b.name} of {b.family}"),
        ("its content", _hash(a.content_hash), _hash(b.content_hash)),
        ("its adapter", _hash(a.adapter_hash), _hash(b.adapter_hash)),
        ("dtype", a.dtype, b.dtype),
        ("device", old.device, new.device),
    ):
        yield f"{name}: {before}" + (" (the same)" if before == after else f" -> {after}")
    ours, theirs = _scores(old), _scores(new)
    for task, key in {**ours, **theirs}:
        values = [side.get((task, key), math.nan) for side in (ours, theirs)]
        share = are_shares(key, *(value for value in values if not math.isnan(value)))
        yield f"{task} {key}: {score_text(values[0], share)} -> {score_text(values[1], share)}"


def _hash(content: str | None) -> str:
    return "none" if content is None else content.removeprefix("sha256:")[:12]


def _scores(one: Baseline) -> dict[tuple[str, str], float]:
    own = {(task, key): score.value for task, found in one.tasks.items() for key, score in found.scores.items()}
    return own | {(group, key): value for group, keys in one.groups.items() for key, value in keys.items()}


def _shown(value: Value) -> str:
    return "nothing" if value is None else f"{value:g}" if isinstance(value, (int, float)) else str(value)


def record(verdict: Verdict) -> dict[str, Any]:
    """For ``--json``."""
    from dataclasses import asdict

    return {
        "red": verdict.red,
        "headline": headline(verdict),
        "reasons": verdict.reasons,
        "run": verdict.run,
        "checkpoint": verdict.after.checkpoint.model_dump(),
        "baseline": verdict.before.checkpoint.model_dump(),
        "smallest_effect": verdict.smallest_effect,
        "scores": [{**asdict(one), "gain": one.gain} for one in verdict.scores],
        "groups": [dict(zip(("group", "score", "before", "after"), group, strict=True)) for group in verdict.groups],
        "flips": [asdict(flip) for flip in verdict.flips],
        "changed": [asdict(flip) for flip in verdict.changed],
        "notes": verdict.notes,
    }
