"""The differences of two runs of a site that its pages show. They are computed again only when
one of the runs or of their sample files has changed. Where sample lines are absent, documents cannot be paired: those
differences come from the intervals of the scores. All pages with differences between a trained checkpoint and the one
that it was trained from adjust their p-values together, so that they agree on what is significant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dare_bench.analysis.comparison import ScoreComparison, compare, verdict_of
from dare_bench.analysis.intervals import LEVEL, difference_bounds
from dare_bench.analysis.paired_tests import Difference, holm
from dare_bench.analysis.settings import MODEL
from dare_bench.analysis.task_changes import DatedScore, question_difference
from dare_bench.errors import IncompleteError, RunError, UsageError
from dare_bench.leaderboards.checkpoint_trees import edges
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.rendering import Tone, tone
from dare_bench.leaderboards.site import Site
from dare_bench.runs.scores import Score


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A run of a trained checkpoint, one of the checkpoint that it was trained from, and the difference by task."""

    name: str
    detail: str
    page: str
    base: str
    base_page: str
    deltas: list[tuple[str, Delta]]


PLACE = "compare.html"
Scores = list[tuple[str, str]]
"""(task, "metric,filter") of each score."""


def pairs(context: Context) -> list[tuple[BoardEntry, BoardEntry, Scores]]:
    """A run of a base and one of a checkpoint that was trained from it, with the scores to compare, for all edges."""
    by_edge: dict[tuple[int, int], tuple[BoardEntry, BoardEntry, Scores]] = {}
    for task, own, base in (edge for root in context.lineage for edge in edges(root)):
        if not isinstance(base, str):
            _, _, scores = by_edge.setdefault((id(base.entry), id(own.entry)), (base.entry, own.entry, []))
            scores.append((task, own.score.key))
    return list(by_edge.values())


def changes_of(site: Site, context: Context) -> tuple[list[CheckpointChange], list[tuple[str, str]]]:
    """The changes along every edge of the lineage, and (name, reason) of those that are not comparable."""
    changes, refused = [], []
    for base, entry, scores in pairs(context):
        deltas = []
        for task, key in scores:
            delta = difference(site, base, entry, task, key)
            if isinstance(delta, str):
                refused.append((f"{entry.name.text}, {task}", delta))
            else:
                deltas.append((task, delta))
        if deltas:
            names = entry.name.title, entry.name.detail, entry.page, base.name.text, base.page
            changes.append(CheckpointChange(*names, deltas))
    return changes, refused


def p_values(changes: Iterable[CheckpointChange]) -> list[float]:
    """The p-values that are adjusted together: of all changes and tasks of the site."""
    return sorted(delta.p for change in changes for _, delta in change.deltas if delta.p is not None)


def adjust(values: Sequence[float]) -> dict[float | None, float | None]:
    """Each p-value after Holm's adjustment (equal values stay equal)."""
    return {None: None, **dict(zip(values, holm(values), strict=True))}


def judged(
    changes: Sequence[CheckpointChange],
) -> list[tuple[CheckpointChange, list[tuple[str, Delta, float | None, Tone]]]]:
    """Each change with (task, difference, adjusted p, tone) of its tasks."""
    adjusted = adjust(p_values(changes))
    return [
        (change, [(task, delta, p := adjusted[delta.p], delta.tone(p)) for task, delta in change.deltas])
        for change in changes
    ]


@dataclass(frozen=True, slots=True)
class Delta(Difference):
    """A difference as pages show it, p not adjusted. ``settings`` names the settings that differ beside the
    checkpoint; ``page`` compares the two runs."""

    share: bool
    higher_is_better: bool
    page: str
    settings: tuple[str, ...] = ()
    paired: bool = True

    @property
    def gain(self) -> Delta:
        """The difference with the sign of a gain: positive is better."""
        return self if self.higher_is_better else replace(self.reversed(), higher_is_better=True)

    def tone(self, adjusted: float | None) -> Tone:
        """The tone of the verdict on the second run by the adjusted p."""
        return tone(verdict_of(self.gain.value, adjusted, LEVEL))


def facts(site: Site, first: BoardEntry, second: BoardEntry) -> dict[str, Any]:
    """Compare two runs, the second with the first: ``items`` (by task, see :func:`_record`), or ``refused``, why the
    two cannot be compared."""
    name = f"pair {first.slug} {second.slug}"
    if name in site.parts:
        return site.parts[name].facts
    inputs = [(entry.state, entry.files) for entry in (first, second)]
    return site.part(name, inputs, lambda: _compare(first, second))


def difference(site: Site, first: BoardEntry, second: BoardEntry, task: str, key: str) -> Delta | str:
    """The difference of one score of two runs, or why they are not comparable. It is unpaired where one of them has no
    sample lines."""
    page = f"{PLACE}?a={first.slug}&b={second.slug}"
    if lacks_samples(first, task) or lacks_samples(second, task):
        unpaired = unpaired_difference(first, second, task, key)
        if isinstance(unpaired, str):
            return unpaired
        found, score = unpaired
        more = [name for name in first.requested.keys() | second.requested.keys() if name not in MODEL]
        settings = tuple(sorted(name for name in more if first.requested.get(name) != second.requested.get(name)))
        return Delta(
            **asdict(found), share=score.is_share, higher_is_better=score.higher_is_better is not False, page=page,
            settings=settings, paired=False,
        )  # fmt: skip
    pair = facts(site, first, second)
    if "refused" in pair:
        return str(pair["refused"])
    item = pair["items"].get(task)
    if item is None or item["key"] != key:  # not a headline, or a task inside a group that both have
        inputs = [(entry.state, entry.files) for entry in (first, second)]
        name = f"pair {first.slug} {second.slug} {task} {key}"
        item = site.part(name, inputs, lambda: _compare_one(first, second, task, key))
    if "refused" in item or item["breaks"]:
        return str(item.get("refused") or "; ".join(item["breaks"]))
    values = item | {"page": page, "settings": tuple(item["settings"])}
    return Delta(**{field.name: values[field.name] for field in fields(Delta) if field.name in values})


def _compare_one(first: BoardEntry, second: BoardEntry, task: str, key: str) -> dict[str, Any]:
    try:
        (item,) = compare([first.open(), second.open()], [task], key, force=True).items
    except (IncompleteError, RunError, UsageError) as error:
        return {"refused": _without_paths(error, first, second)}
    return _record(item)


def _without_paths(message: object, *entries: BoardEntry) -> str:
    """A message without the paths of the machine that built the site."""
    text = str(message)
    for entry in entries:
        text = text.replace(str(entry.path), entry.run_id)
    return text


def _compare(first: BoardEntry, second: BoardEntry) -> Mapping[str, Any]:
    try:
        comparison = compare([first.open(), second.open()], force=True)
    except (IncompleteError, RunError, UsageError) as error:
        return {"refused": _without_paths(error, first, second)}
    return {"items": {item.task: _record(item) for item in comparison.items}}


def _record(item: ScoreComparison) -> dict[str, Any]:
    """The facts about a comparison that other pages show."""
    return {
        "key": item.key,
        **asdict(item.difference),
        "share": item.is_share,
        "higher_is_better": item.higher_is_better is not False,
        "breaks": list(item.breaks),
        "settings": [name for name in item.settings if name not in MODEL],
    }


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
    from scipy.special import ndtr, ndtri

    half = value - lo if value > 0 else hi - value
    if half <= 0:
        return 1.0 if value == 0 else None
    return float(2 * ndtr(-abs(value) / half * ndtri(0.5 + LEVEL / 2)))
