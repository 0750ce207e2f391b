"""What training did: every trained checkpoint's run beside one of what it was made from. All pages that tell these
differences adjust their p together, so that none is called shown here and not shown there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dare_bench.leaderboards import pair_page
from dare_bench.leaderboards.context import Context
from dare_bench.leaderboards.entries import BoardEntry
from dare_bench.leaderboards.lineage import edges, trees
from dare_bench.leaderboards.pair_page import Delta
from dare_bench.leaderboards.site import Site
from dare_bench.stats.paired import holm

LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class CheckpointChange:
    """A trained checkpoint's run beside one of what it was made from, and what changed in each task."""

    name: str
    detail: str
    page: str
    base: str
    base_page: str
    deltas: list[tuple[str, Delta]]


@dataclass(frozen=True, slots=True)
class _Beside:
    """A run of a trained checkpoint and one of what it was made from, with the scores to compare (task and key)."""

    base: BoardEntry
    own: BoardEntry
    scores: list[tuple[str, str]]


def any_step(context: Context) -> bool:
    """Is any trained checkpoint to be compared with what it was made from?"""
    return any(_edges(context))


def _edges(context: Context) -> list[_Beside]:
    """All checkpoints whose parent was evaluated, by the runs that their scores are from."""
    found: dict[tuple[int, int], _Beside] = {}
    for made in (made for root in trees(context.entries) for made in edges(root)):
        if made.base is not None:
            pair = _Beside(made.base.entry, made.own.entry, [])
            found.setdefault((id(pair.base), id(pair.own)), pair).scores.append((made.task, made.own.score.key))
    return list(found.values())


def steps_of(site: Site, context: Context) -> tuple[list[CheckpointChange], list[tuple[str, str]]]:
    """Every edge of the lineage, and those that do not compare, with the reason."""
    made, refused = [], []
    for one in _edges(context):
        deltas, own = [], one.own
        for task, key in one.scores:
            found = pair_page.difference(site, one.base, own, task, key)
            if isinstance(found, str):
                refused.append((f"{own.name.text}, {task}", found))
            else:
                deltas.append((task, found))
        if deltas:
            made.append(
                CheckpointChange(own.name.title, own.name.detail, own.page, one.base.name.text, one.base.page, deltas)
            )
    return made, refused


def family(steps: Iterable[CheckpointChange]) -> list[float]:
    """The p-values that are adjusted together: of all steps and tasks of the site, on whatever page they stand."""
    return sorted(delta.p for step in steps for _, delta in step.deltas if delta.p is not None)


def adjust(known: Sequence[float]) -> dict[float | None, float | None]:
    """Each p of a family after Holm's adjustment (equal ones stay equal)."""
    return {None: None, **dict(zip(known, holm(known), strict=True))}


def kind(delta: Delta, adjusted: float | None) -> str:
    """What a difference shows: better, worse or none."""
    if adjusted is None or adjusted > 1 - LEVEL or not delta.value:
        return "none"
    return "better" if delta.gain > 0 else "worse"


def judged(
    steps: Sequence[CheckpointChange],
) -> list[tuple[CheckpointChange, list[tuple[str, Delta, float | None, str]]]]:
    """Each step with its tasks: difference, adjusted p, and what that shows."""
    adjusted = adjust(family(steps))
    return [
        (step, [(task, delta, p := adjusted[delta.p], kind(delta, p)) for task, delta in step.deltas]) for step in steps
    ]
