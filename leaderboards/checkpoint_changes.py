"""The effect of training: every trained checkpoint compared with the one that it was trained from.

All pages with these differences adjust their p-values together, so that they agree on what is significant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dare_bench.analysis.paired_tests import holm
from dare_bench.leaderboards import pair_page
from dare_bench.leaderboards.checkpoint_trees import LineageEdge, edges
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.pair_page import Delta, Verdict
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


def pairs(context: Context) -> list[list[LineageEdge]]:
    """All edges between two evaluated checkpoints, grouped by the two runs that their scores come from."""
    found: dict[tuple[int, int], list[LineageEdge]] = {}
    for edge in (edge for root in context.lineage for edge in edges(root)):
        if edge.base is not None:
            found.setdefault((id(edge.base.entry), id(edge.score.entry)), []).append(edge)
    return list(found.values())


def changes_of(site: Site, context: Context) -> tuple[list[CheckpointChange], list[tuple[str, str]]]:
    """The changes along every edge of the lineage, and (name, reason) of those that are not comparable."""
    changes, refused = [], []
    for pair in pairs(context):
        assert pair[0].base is not None
        base, entry, deltas = pair[0].base.entry, pair[0].score.entry, []
        for edge in pair:
            delta = pair_page.difference(site, base, entry, edge.task, edge.score.score.key)
            if isinstance(delta, str):
                refused.append((f"{entry.name.text}, {edge.task}", delta))
            else:
                deltas.append((edge.task, delta))
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
) -> list[tuple[CheckpointChange, list[tuple[str, Delta, float | None, Verdict]]]]:
    """Each change with (task, difference, adjusted p, verdict) of its tasks."""
    adjusted = adjust(p_values(changes))
    return [
        (change, [(task, delta, p := adjusted[delta.p], delta.verdict(p)) for task, delta in change.deltas])
        for change in changes
    ]
