"""Did a task change between runs? Then their scores answer different questions.

A task's fingerprint has two halves: a hash of its definition (prompt templates, filters, scorer source) and one of all
prompts and targets. They say that something changed; the sample lines say in how many documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from dare_bench.analysis.names import run_names
from dare_bench.analysis.settings import config_of, differing, own_templates, prompt_context, prompt_settings, shown
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import TaskBlock

_MANY_GROUPS = 3
# lm-eval's hash of the whole document is left out: a column that no prompt shows changes it.
_HASHES = {"prompt_hash": "the prompt", "target_hash": "the target"}


@dataclass(frozen=True, slots=True)
class TaskChange:
    """What differs in one task between two runs under the same harness; the lists are empty if nothing does.

    ``breaks``: why the two scores are not comparable. ``notes``: what else differs in prompts and documents.
    ``counts``: of documents, how many each run has alone, both have, and in how many of these prompt or target differ.
    """

    first: str
    second: str
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def task_change(first: Run, second: Run, task: str, names: tuple[str, str] | None = None) -> TaskChange:
    """The task of that name in both runs, compared by fingerprint, then document by document."""
    (definition, documents), (definition_b, documents_b) = (
        _block(run, task).fingerprint.partition(":")[::2] for run in (first, second)
    )
    breaks, notes = [], []
    counts: dict[str, int] = {}
    if definition != definition_b:
        configs = [config_of(run, task) for run in (first, second)]
        if configs[0] != configs[1]:
            text = f"two configs of one data set ask or score it differently: {configs[0]} and {configs[1]}"
            return TaskChange(*(names or (first.run_id, second.run_id)), (text,))
        breaks.append(
            "the task's prompts, filters or scorer changed between these runs: their scores aren't comparable"
            f" (definition {definition} and {definition_b})"
        )
        versions = [run.block.harness.version for run in (first, second) if run.block]
        if versions[0] != versions[1]:
            notes.append(f"the harness's version changed too: {versions[0]} and {versions[1]}")
    if documents != documents_b:
        counts = _document_counts(first, second, task)
        content = not counts["both"] or any(counts[name] for name in _HASHES)  # without sample lines nobody can tell
        meant = _own_templates(first, second, task, counts)
        (breaks if content and not meant else notes).extend(_document_texts(counts, first, second, task))
        if meant:
            notes.append("each checkpoint was asked by its own chat template, which is why the prompts differ")
        elif content:
            reasons = differing(prompt_settings(first, task), prompt_settings(second, task))
            notes += [f"{name}: {shown(a)} and {shown(b)}" for name, (a, b) in reasons.items()]
    return TaskChange(*(names or (first.run_id, second.run_id)), tuple(breaks), tuple(notes), counts)


def _block(run: Run, task: str) -> TaskBlock:
    assert run.block is not None
    return run.block.tasks[task]


def _document_counts(first: Run, second: Run, task: str) -> dict[str, int]:
    """How many documents each run has alone, both have, and in how many of these prompt or target differ."""
    ours, theirs = (
        {str(row.get("doc_id")): tuple(row.get(name) for name in _HASHES) for row in run.samples(task)}
        for run in (first, second)
    )
    both = ours.keys() & theirs.keys()
    counts = {"only first": len(ours.keys() - both), "only second": len(theirs.keys() - both), "both": len(both)}
    return counts | {name: sum(ours[doc][at] != theirs[doc][at] for doc in both) for at, name in enumerate(_HASHES)}


def _own_templates(first: Run, second: Run, task: str, counts: dict[str, int]) -> bool:
    """Do only prompts differ, and those for the sake of the checkpoints' own chat templates?"""
    prompts_alone = counts["both"] > 0 and counts["prompt_hash"] > 0 and not counts["target_hash"]
    return prompts_alone and own_templates(prompt_context(first, task), prompt_context(second, task))


def _document_texts(counts: dict[str, int], first: Run, second: Run, task: str) -> Iterator[str]:
    if not counts["both"]:
        numbers = f"{_block(first, task).n_docs} and {_block(second, task).n_docs}"
        yield f"other documents or prompts were asked ({numbers}): their scores aren't comparable"
        return
    differ = [f"{what} in {counts[name]}" for name, what in _HASHES.items() if counts[name]]
    if differ:
        yield f"of {counts['both']} documents that both runs asked, these differ: " + ", ".join(differ)
    if counts["only first"] or counts["only second"]:
        yield (
            f"not the same documents: {counts['both']} are in both runs, {counts['only first']} only in the first,"
            f" {counts['only second']} only in the second"
        )


@dataclass(frozen=True, slots=True)
class TaskVariants:
    """One task under one harness in several runs. Runs of one group have the same prompts wherever they have the same
    documents; ``changes`` are between the first runs of groups, ``notes`` on runs of one group."""

    task: str
    harness: str
    groups: tuple[tuple[str, ...], ...]
    changes: tuple[TaskChange, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def same(self) -> bool:
        return len(self.groups) == 1 and not self.notes


def task_variants(runs: Sequence[Run]) -> list[TaskVariants]:
    """Each task that several runs have under one harness, its runs grouped by their prompts. Runs are sorted before
    they are compared, so that the order of the arguments changes nothing."""
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    tasks: dict[tuple[str, str], list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        for task in run.tasks:
            assert run.block is not None  # a run without results has no tasks
            tasks.setdefault((run.block.harness.name, task), []).append(run)
    return [
        _variants(task, harness, sorted(own, key=lambda run: names[id(run)]), names)
        for (harness, task), own in tasks.items()
        if len(own) > 1
    ]


def _variants(task: str, harness: str, runs: list[Run], names: dict[int, str]) -> TaskVariants:
    alike: dict[str, list[Run]] = {}
    for run in runs:
        alike.setdefault(_block(run, task).fingerprint, []).append(run)
    groups: list[list[list[Run]]] = []
    # Those with most documents first: what a group's first run does not have, the others cannot show either.
    for own in sorted(alike.values(), key=lambda own: -_block(own[0], task).n_docs):
        for group in groups:
            if not any(task_change(other[0], own[0], task).breaks for other in group):
                group.append(own)
                break
        else:
            groups.append([own])
    changes = [
        task_change(a, b, task, (names[id(a)], names[id(b)])) for a, b in _pairs([group[0][0] for group in groups])
    ]
    notes = [
        f"{names[id(a)]} and {names[id(b)]}: {text}"
        for group in groups
        for a, b in _pairs([own[0] for own in group])
        for text in task_change(a, b, task).notes
    ]
    runs_of = (tuple(sorted(names[id(run)] for own in group for run in own)) for group in groups)
    return TaskVariants(task, harness, tuple(runs_of), tuple(changes), tuple(notes))


def _pairs(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Every two runs; of more than a few only each with the first."""
    return combinations(runs, 2) if len(runs) <= _MANY_GROUPS else ((runs[0], other) for other in runs[1:])
