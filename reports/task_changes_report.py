"""The report's section on tasks of several runs: do they have the same prompts?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dare_bench.analysis.names import letter
from dare_bench.analysis.task_changes import TaskVariants
from dare_bench.reports.elements import Bullets, Element, Heading, Paragraph


def elements(tasks: Sequence[TaskVariants]) -> Iterator[Element]:
    """The section; empty if no task is in several runs."""
    if not tasks:
        return
    yield Heading("The same task?")
    several = len({task.harness for task in tasks}) > 1
    titles = [f"{task.task} ({task.harness})" if several else task.task for task in tasks]
    for task, title in zip(tasks, titles, strict=True):
        if not task.same:
            yield from _differing(task, title)
    for recorded, qualified in ((True, ""), (False, ", as far as external results record them")):
        same = dict.fromkeys(
            title for task, title in zip(tasks, titles, strict=True) if task.same and task.recorded == recorded
        )
        if same:
            yield Paragraph(f"Same prompts, targets, filters and scorer in all runs{qualified}: {', '.join(same)}.")


def _differing(task: TaskVariants, title: str) -> Iterator[Element]:
    if len(task.groups) == 1:
        yield Heading(f"{title}: not the same documents", 3)
        yield Bullets(task.notes)
        return
    if len(task.changes) == 1 and all(len(group) == 1 for group in task.groups):
        (change,) = task.changes
        yield Heading(f"{title}: {change.first} and {change.second}", 3)
        yield Bullets([*change.breaks, *change.notes])
        return
    yield Heading(f"{title}: {len(task.groups)} variants", 3)
    letters = {name: letter(at) for at, group in enumerate(task.groups) for name in group}
    yield Bullets([f"{letter(at)}: {', '.join(group)}" for at, group in enumerate(task.groups)])
    yield Bullets([
        f"{letters[change.first]} and {letters[change.second]}: {text}"
        for change in task.changes for text in (*change.breaks, *change.notes)
    ])  # fmt: skip
    if task.notes:
        yield Bullets(task.notes)
