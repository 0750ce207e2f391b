"""What was asked in a task of a run, and under which settings; and where two runs differ in that.

A task's fingerprint has two halves: a hash of its definition (prompt templates, filters, scorer source) and one of all
prompts and targets that were asked. They say that something changed; the sample lines say in how many documents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dare_bench.analysis.standing import around, own_templates
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.schema import TaskBlock
from dare_bench.runs.scores import opened_with
from dare_bench.types import Decoding

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


def task_block(run: Run, task: str) -> TaskBlock:
    """How a run that has results asked a task of its own."""
    assert run.block is not None
    return run.block.tasks[task]


def change(first: Run, second: Run, task: str, names: tuple[str, str] | None = None) -> Change:
    """The task of that name in both runs, compared by fingerprint, then document by document."""
    assert first.block is not None and second.block is not None
    a, b = task_block(first, task), task_block(second, task)
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
        meant = _own_templates(first, second, task, counts)
        (breaks if _content(counts) and not meant else notes).extend(_told(counts, a, b))
        if meant:
            notes.append("each checkpoint was asked by its own chat template, which is why the prompts differ")
        elif _content(counts):
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


def _own_templates(first: Run, second: Run, task: str, counts: dict[str, int]) -> bool:
    """Do only prompts differ, and those for the sake of the checkpoints' own chat templates?"""
    prompts_alone = counts["both"] > 0 and counts["prompt_hash"] > 0 and not counts["target_hash"]
    return prompts_alone and own_templates(around(first, task), around(second, task))


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


def config_of(run: Run, task: str) -> str:
    """The config that a task was taken from, where the harness has such (OpenCompass's file name); "" elsewhere."""
    configs = run.results.get("configs", {})
    return ", ".join(dict.fromkeys(filter(None, (_config(configs.get(name)) for name in members(run.results, task)))))


def _config(own: Any) -> str:
    return str((own or {}).get("config") or "")


def answers_each(run: Run, name: str) -> int:
    """How many answers each prompt of a task or group got, counted: ``--repeats`` leaves likelihoods alone, and a task
    may ask for several answers by itself."""
    assert run.block is not None
    tasks = [run.block.tasks[task] for task in members(run.results, name) if task in run.block.tasks]
    own = [task.requests // task.n_docs for task in tasks if task.decoding and not task.likelihood and task.n_docs]
    return max([1, *own])


def differing_settings(first: Run, second: Run, a: str, b: str) -> dict[str, tuple[Any, Any]]:
    """What differs in how the two were asked: checkpoint, family, harness, what stands around the documents, seeds,
    decoding, estimator. Two families decode each by settings of its own: of these only what both have is compared."""
    ours, theirs = dict(_facts(first, a)), dict(_facts(second, b))
    found = differing(ours, theirs)
    if "family" in found:
        found = {name: two for name, two in found.items() if name in ours and name in theirs}
    return found


def _facts(run: Run, task: str) -> Iterator[tuple[str, Any]]:
    assert run.block is not None
    block, own = run.block, run.block.tasks[task]
    yield "checkpoint", block.model.content_hash
    yield "adapter", block.model.adapter_hash
    yield "family", block.model.family
    yield "dtype", block.model.dtype
    yield from ((f"opened with {name}", value) for name, value in opened_with(run.results).items())
    yield "harness", f"{block.harness.name} {block.harness.version}"
    yield from asking(run, task).items()
    yield "sampling seed", block.seeds[2]
    yield "python seed", block.seeds[0]
    yield "numpy seed", block.seeds[1]
    yield "few-shot seed", block.seeds[3]
    yield "repeats", block.repeats
    yield "answers to each prompt", answers_each(run, task)
    yield "tier", own.tier
    yield from ((name, value) for name, value in own.decoding.items() if name not in Decoding.hidden)
    yield from ((f"likelihood {name}", value) for name, value in own.likelihood.items())
