"""Did a task change between runs? Then their scores answer different questions.

A task's fingerprint has two halves: a hash of its definition (prompt templates, filters, scorer source) and one of all
prompts and targets that were asked. They say that something changed; the sample lines say in how many documents. Runs
are sorted before they are compared, so that the order of the arguments changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from dare_bench.reports.scores import config_of, run_names
from dare_bench.reports.text import Bullets, Heading, Line, Piece
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import TaskBlock

_MANY_GROUPS = 3
_SHOWN = 60
_KNOWN = ("config", "examples (n-shot)", "examples as turns")


@dataclass(frozen=True, slots=True)
class Change:
    """What differs in one task between two runs under the same harness; the lists are empty if nothing does.

    ``breaks``: why the two scores are not comparable. ``notes``: what else differs in what was asked. ``counts``: of
    documents, how many each run has alone, both have, and in how many of these the prompt or the target differ.
    """

    first: str
    second: str
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


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
        alike.setdefault(_block(run, task).fingerprint, []).append(run)
    # Those with most documents first: what a group's first run does not have, the others cannot show either.
    classes = sorted(alike.values(), key=lambda own: -_block(own[0], task).n_docs)
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


def _block(run: Run, task: str) -> TaskBlock:
    assert run.block is not None
    return run.block.tasks[task]


def change(first: Run, second: Run, task: str, names: tuple[str, str] | None = None) -> Change:
    """The task of that name in both runs, compared by fingerprint, then document by document."""
    assert first.block is not None and second.block is not None
    a, b = _block(first, task), _block(second, task)
    (definition, documents), (definition_b, documents_b) = _halves(a), _halves(b)
    one, two = names or (first.run_id, second.run_id)
    breaks, notes = [], []
    counts: dict[str, int] = {}
    configs = [config_of(run, task) for run in (first, second)]
    if definition != definition_b and configs[0] != configs[1]:
        breaks.append(f"two configs of one data set ask or score it differently: {configs[0]} and {configs[1]}")
        return Change(one, two, tuple(breaks))
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
        if _content(counts):
            notes += _reasons(first, second, task)
    return Change(one, two, tuple(breaks), tuple(notes), counts)


def asking(run: Run, task: str) -> dict[str, Any]:
    """What a run put around a task's documents, by name: config, examples, chat template, system instruction."""
    assert run.block is not None
    template = run.results.get("chat_template_sha") or run.results.get("chat_template")
    shots = run.results.get("n-shot", {}).get(task)
    found = {
        "config": config_of(run, task) or None,
        "chat template": f"{str(template)[:12]}…" if template else "not applied",
        "examples (n-shot)": shots,
        "system instruction": run.results.get("system_instruction"),
    }
    if shots:
        found["few-shot seed"] = run.block.seeds[3]
        if template:
            found["examples as turns"] = run.results.get("fewshot_as_multiturn")
    return found


def differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ, by name. What one side does not know, or does not have, is no difference."""
    pairs = {name: (ours.get(name), theirs.get(name)) for name in {**ours, **theirs}}
    return {name: two for name, two in pairs.items() if two[0] != two[1] and not (name in _KNOWN and None in two)}


def shown(value: Any) -> str:
    """A setting's value, cut where it is long."""
    text = "not set" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


def _reasons(first: Run, second: Run, task: str) -> Iterator[str]:
    """Settings that make prompts differ."""
    for name, (a, b) in differing(asking(first, task), asking(second, task)).items():
        yield f"{name}: {shown(a)} and {shown(b)}"


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
    letters = {group[0]: _letter(at) for at, group in enumerate(one.groups)}
    group_of = {name: letters[group[0]] for group in one.groups for name in group}
    yield Bullets([f"{letters[group[0]]}: {', '.join(group)}" for group in one.groups])
    yield Bullets([
        f"{group_of[pair.first]} and {group_of[pair.second]}: {text}"
        for pair in one.changes for text in (*pair.breaks, *pair.notes)
    ])  # fmt: skip
    if one.notes:
        yield Bullets(one.notes)


def _letter(at: int) -> str:
    return chr(ord("A") + at) if at < 26 else f"group {at + 1}"
