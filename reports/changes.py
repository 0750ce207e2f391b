"""Did a task change between runs? Then their scores answer different questions.

Runs are sorted before they are compared, so that the order of the arguments changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from dare_bench.analysis.names import letter, run_names
from dare_bench.analysis.settings import Change, change, task_block
from dare_bench.reports.text import Bullets, Heading, Line, Piece
from dare_bench.runs.reader import Run

_MANY_GROUPS = 3


@dataclass(frozen=True, slots=True)
class Asked:
    """One task under one harness in several runs. Runs of one group were asked the same wherever they have the same
    documents; ``changes`` are between the first runs of groups, ``notes`` on runs of one group."""

    task: str
    harness: str
    groups: tuple[tuple[str, ...], ...]
    changes: tuple[Change, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return len(self.groups) == 1 and not self.notes


def changes(runs: Sequence[Run]) -> list[Asked]:
    """Each task that several runs have under one harness, its runs grouped by what they were asked."""
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    unique = {run.path.resolve(): run for run in runs}
    found: dict[tuple[str, str], list[Run]] = {}
    for run in unique.values():
        for task in run.tasks:
            assert run.block is not None  # a run without results has no tasks
            found.setdefault((run.block.harness.name, task), []).append(run)
    return [
        _asked(task, harness, sorted(own, key=lambda run: names[id(run)]), names)
        for (harness, task), own in found.items()
        if len(own) > 1
    ]


def _asked(task: str, harness: str, runs: list[Run], names: dict[int, str]) -> Asked:
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(task_block(run, task).fingerprint, []).append(run)
    # Those with most documents first: what a group's first run does not have, the others cannot show either.
    classes = sorted(alike.values(), key=lambda own: -task_block(own[0], task).n_docs)
    groups: list[list[list[Run]]] = []
    notes = []
    for own in classes:
        for group in groups:
            if not any(change(other[0], own[0], task).breaks for other in group):
                group.append(own)
                break
        else:
            groups.append([own])
    for group in groups:
        for a, b in combinations(group, 2) if len(group) <= _MANY_GROUPS else ((group[0], own) for own in group[1:]):
            notes += [f"{names[id(a[0])]} and {names[id(b[0])]}: {text}" for text in change(a[0], b[0], task).notes]
    first = [group[0][0] for group in groups]
    pairs = combinations(first, 2) if len(first) <= _MANY_GROUPS else ((first[0], other) for other in first[1:])
    return Asked(
        task,
        harness,
        tuple(tuple(sorted(names[id(run)] for own in group for run in own)) for group in groups),
        tuple(change(a, b, task, (names[id(a)], names[id(b)])) for a, b in pairs),
        tuple(notes),
    )


def pieces(found: Sequence[Asked]) -> Iterator[Piece]:
    """The report's section on tasks that more than one run has; nothing if there is none."""
    if not found:
        return
    yield Heading("The same task?")
    several = len({one.harness for one in found}) > 1
    for one in found:
        if not one.same:
            yield from _differing(one, f"{one.task} ({one.harness})" if several else one.task)
    same = dict.fromkeys(f"{one.task} ({one.harness})" if several else one.task for one in found if one.same)
    if same:
        yield Line(f"Same prompts, targets, filters and scorer in all runs: {', '.join(same)}.")


def _differing(one: Asked, title: str) -> Iterator[Piece]:
    if len(one.groups) == 1:
        yield Heading(f"{title}: not the same documents", 3)
        yield Bullets(one.notes)
        return
    if len(one.changes) == 1 and all(len(group) == 1 for group in one.groups):
        (only,) = one.changes
        yield Heading(f"{title}: {only.first} and {only.second}", 3)
        yield Bullets([*only.breaks, *only.notes])
        return
    yield Heading(f"{title}: asked in {len(one.groups)} ways", 3)
    letters = {group[0]: letter(at) for at, group in enumerate(one.groups)}
    group_of = {name: letters[group[0]] for group in one.groups for name in group}
    yield Bullets([f"{letters[group[0]]}: {', '.join(group)}" for group in one.groups])
    yield Bullets([
        f"{group_of[pair.first]} and {group_of[pair.second]}: {text}"
        for pair in one.changes for text in (*pair.breaks, *pair.notes)
    ])  # fmt: skip
    if one.notes:
        yield Bullets(one.notes)
