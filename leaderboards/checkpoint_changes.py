"""The effect of training: every trained checkpoint compared with the one that it was trained from.

All pages with these differences adjust their p-values together, so that they agree on what is significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dare_bench.analysis.paired_tests import holm
from dare_bench.leaderboards import pair_differences
from dare_bench.leaderboards.checkpoint_trees import edges
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.pair_differences import Delta
from dare_bench.leaderboards.rendering import Tone
from dare_bench.leaderboards.site import Site


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A run of a trained checkpoint, one of the checkpoint that it was trained from, and the difference by task."""

    name: str
    detail: str
    page: str
    base: str
    base_page: str
    deltas: list[tuple[str, Delta]]


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
            delta = pair_differences.difference(site, base, entry, task, key)
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
