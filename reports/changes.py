"""Did a task change between two runs? Then their scores answer different questions.

A task's fingerprint has two halves: a hash of its definition (prompt templates, filters, scorer source) and one of all
prompts and targets that were asked. They say that something changed; the sample lines say in how many documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dare_bench.reports.text import Bullets, Heading, Line, Piece
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import TaskBlock


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in one task between two runs under the same harness; the lists are empty if nothing does.

    ``breaks``: why the two scores are not comparable. ``notes``: what else differs in what was asked.
    """

    task: str
    first: str
    second: str
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        return not (self.breaks or self.notes)


def changes(runs: Sequence[Run]) -> list[Change]:
    """Each run of a task beside the first one of that task and harness, in the order given."""
    first: dict[tuple[str, str], Run] = {}
    found = []
    for run in runs:
        for task in run.tasks:
            assert run.block is not None  # a run without results has no tasks
            before = first.setdefault((run.block.harness.name, task), run)
            if before is not run:
                found.append(change(before, run, task))
    return found


def change(first: Run, second: Run, task: str) -> Change:
    """The task of that name in both runs, compared by fingerprint, then document by document."""
    assert first.block is not None and second.block is not None
    a, b = first.block.tasks[task], second.block.tasks[task]
    (definition, documents), (definition_b, documents_b) = _halves(a), _halves(b)
    breaks, notes = [], []
    counts: dict[str, int] = {}
    configs = [_config(run, task) for run in (first, second)]
    if definition != definition_b and configs[0] != configs[1]:
        breaks.append(f"two configs of one data set ask or score it differently: {configs[0]} and {configs[1]}")
        return Change(task, first.run_id, second.run_id, tuple(breaks))
    if definition != definition_b:
        breaks.append(
            "the task's prompts, filters or scorer changed between these runs: their scores aren't comparable"
            f" (definition {definition} and {definition_b})"
        )
        versions = [block.harness.version for block in (first.block, second.block)]
        if versions[0] != versions[1]:
            notes.append(f"the harness's version changed too: {versions[0]} and {versions[1]}")
    if documents != documents_b:
        counts = _documents(first, second, task)
        (breaks if _content(counts) else notes).extend(_told(counts, a, b))
    return Change(task, first.run_id, second.run_id, tuple(breaks), tuple(notes), counts)


def _config(run: Run, task: str) -> str:
    """The config that a task was taken from, where the harness has such (OpenCompass's file name)."""
    return str((run.results.get("configs", {}).get(task) or {}).get("config") or "")


def _halves(task: TaskBlock) -> tuple[str, str]:
    definition, _, documents = task.fingerprint.partition(":")
    return definition, documents


def _documents(first: Run, second: Run, task: str) -> dict[str, int]:
    """How many documents each run has alone, both have, and in how many of these prompt or target differ."""
    ours, theirs = _hashes(first, task), _hashes(second, task)
    both = ours.keys() & theirs.keys()
    counts = {"only first": len(ours.keys() - both), "only second": len(theirs.keys() - both), "both": len(both)}
    for at, name in enumerate(_HASHES):
        counts[name] = sum(ours[doc][at] != theirs[doc][at] for doc in both)
    return counts


# lm-eval's hash of the whole document is left out: a column that no prompt shows changes it.
_HASHES = {"prompt_hash": "the prompt", "target_hash": "the target"}


def _hashes(run: Run, task: str) -> dict[str, tuple[Any, ...]]:
    """By document id: hashes of prompt and target."""
    return {str(row.get("doc_id")): tuple(row.get(name) for name in _HASHES) for row in run.samples(task)}


def _content(counts: dict[str, int]) -> bool:
    """Is it more than which documents were asked? Without sample lines nobody can tell, which counts as yes."""
    return not counts["both"] or any(counts[name] for name in _HASHES)


def _told(counts: dict[str, int], a: TaskBlock, b: TaskBlock) -> Iterator[str]:
    if not counts["both"]:
        yield f"other documents or prompts were asked ({a.n_docs} and {b.n_docs}): their scores aren't comparable"
        return
    differ = [f"{what} in {counts[name]}" for name, what in _HASHES.items() if counts[name]]
    if differ:
        yield f"of {counts['both']} documents that both runs asked, these differ: " + ", ".join(differ)
    if counts["only first"] or counts["only second"]:
        yield (
            f"not the same documents: {counts['both']} are in both runs, {counts['only first']} only in the first,"
            f" {counts['only second']} only in the second"
        )


def pieces(found: Sequence[Change]) -> Iterator[Piece]:
    """The report's section on tasks that more than one run has; nothing if there is none."""
    if not found:
        return
    yield Heading("The same task?")
    same = [one for one in found if one.same]
    for one in found:
        if not one.same:
            yield Heading(f"{one.task}: {one.first} and {one.second}", 3)
            yield Bullets([*one.breaks, *one.notes])
    if same:
        names = ", ".join(dict.fromkeys(one.task for one in same))
        yield Line(f"Same prompts, targets, filters and scorer in all runs: {names}.")
