"""Changes of a task between runs, which make their scores incomparable.

A task's fingerprint has two halves: a hash of its definition (prompt templates, filters, scorer source) and one of all
prompts and targets. They show that something changed; the sample lines show in how many documents.

Which question of a task is current: the newest complete run has the current definition, and a score under another one
is out of date. Under that definition the current prompts are those of most complete runs; a score with other prompts
(examples, documents) answers another question. Prompts that differ only by the checkpoints' chat templates are the same
question.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dare_bench.analysis.names import run_names
from dare_bench.analysis.settings import (
    PromptContext,
    config_of,
    differ_in_template_only,
    differing_prompt_settings,
    prompt_context,
    setting_text,
)
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import Score

# lm-eval's hash of the document itself is left out: a column that no prompt shows changes it.
_HASHES = {"prompt_hash": "the prompt", "target_hash": "the target"}
_SCORING = ("output_type", "process_results", "filter_list", "metric_list")
"""The entries of lm-eval's task configuration that decide how answers are scored; prompts show in the samples."""
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@dataclass(frozen=True, slots=True)
class TaskChange:
    """Differences of one task between two runs under the same harness; the lists are empty if there are none.

    ``breaks``: why the two scores are not comparable. ``notes``: other differences of prompts and documents.
    ``counts``: the documents that only one run has, that both have, and those whose prompt or target differs.
    """

    first: str
    second: str
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def task_change(first: Run, second: Run, task: str, names: tuple[str, str] | None = None) -> TaskChange:
    """Compare the task of that name in both runs, by fingerprint, then document by document."""
    names = names or (first.name, second.name)
    if first.is_external or second.is_external:
        return _external_change(first, second, task, names)
    prints = [run.require_block().tasks[task].fingerprint.partition(":") for run in (first, second)]
    definitions, documents = [parts[0] for parts in prints], [parts[2] for parts in prints]
    breaks, notes = [], []
    counts: dict[str, int] = {}
    if definitions[0] != definitions[1]:
        configs = [config_of(run, task) for run in (first, second)]
        if configs[0] != configs[1]:
            text = f"two configs of one data set, with different prompts or scorer: {configs[0]} and {configs[1]}"
            return TaskChange(*names, (text,))
        breaks.append(
            "the task's prompts, filters or scorer changed between these runs: their scores aren't comparable"
            f" (definition {definitions[0]} and {definitions[1]})"
        )
        versions = [run.require_block().harness.version for run in (first, second)]
        if versions[0] != versions[1]:
            notes.append(f"the harness's version changed too: {versions[0]} and {versions[1]}")
    if documents[0] != documents[1]:
        counts = _add_documents(first, second, task, breaks, notes)
    return TaskChange(*names, tuple(breaks), tuple(notes), counts)


def _external_change(first: Run, second: Run, task: str, names: tuple[str, str]) -> TaskChange:
    """The change of a task where one of the runs is an external result, whose definition has no fingerprint: by what
    both runs record of it, then document by document where samples were logged."""
    breaks, notes = list(_recorded_differences(first, second, task)), list[str]()
    counts: dict[str, int] = {}
    if all(run.samples_file(task) is not None for run in (first, second)):
        counts = _add_documents(first, second, task, breaks, notes)
    else:
        notes.append("without samples of both runs, their prompts and documents cannot be compared")
    return TaskChange(*names, tuple(breaks), tuple(notes), counts)


def _recorded_differences(first: Run, second: Run, task: str) -> Iterator[str]:
    """How the definitions of a task differ, as far as both runs record them."""
    versions = [(run.results.get("versions") or {}).get(task) for run in (first, second)]
    if None not in versions and versions[0] != versions[1]:
        yield f"two versions of the task: {versions[0]} and {versions[1]}"
    configs = [run.results.get("configs", {}).get(task) or {} for run in (first, second)]
    for name in _SCORING:
        a, b = (_ADDRESS.sub("", str(config.get(name))) for config in configs)
        if all(name in config for config in configs) and a != b:
            yield f"the task's {name} differs: its filters or scorer are not the same"
    if first.is_external != second.is_external and any(
        run.require_block().tasks[task].likelihood and run.require_block().harness.name == "opencompass"
        for run in (first, second)
    ):
        yield "OpenCompass's command compares whole texts by perplexity, dare-bench compares their remainders"


def _add_documents(first: Run, second: Run, task: str, breaks: list[str], notes: list[str]) -> dict[str, int]:
    """Add how the documents differ to ``breaks`` or ``notes``; returns their counts."""
    counts = _document_counts(first, second, task)
    # Without sample lines the contents are unknown.
    content_differs = not counts["both"] or any(counts[name] for name in _HASHES)
    only_prompts = counts["both"] and counts["prompt_hash"] and not counts["target_hash"]
    contexts = prompt_context(first, task), prompt_context(second, task)
    by_template = bool(only_prompts) and differ_in_template_only(*contexts)
    (breaks if content_differs and not by_template else notes).extend(_document_texts(counts, first, second, task))
    if by_template:
        notes.append("each checkpoint was prompted with its own chat template, so the prompts differ")
    elif content_differs:
        reasons = differing_prompt_settings(first, second, task)
        notes += [f"{name}: {setting_text(a)} and {setting_text(b)}" for name, (a, b) in reasons.items()]
    return counts


def _document_counts(first: Run, second: Run, task: str) -> dict[str, int]:
    """The number of documents that only one run has, that both have, and those whose prompt or target differs. An empty
    hash is unknown: it differs from none."""
    a, b = (
        {str(row.get("doc_id")): tuple(row.get(name) for name in _HASHES) for row in run.samples(task)}
        for run in (first, second)
    )
    both = a.keys() & b.keys()
    counts = {"only first": len(a.keys() - both), "only second": len(b.keys() - both), "both": len(both)}
    return counts | {name: sum(_differ(a[doc][at], b[doc][at]) for doc in both) for at, name in enumerate(_HASHES)}


def _differ(a: str | None, b: str | None) -> bool:
    return a != b and "" not in (a, b)


def _document_texts(counts: dict[str, int], first: Run, second: Run, task: str) -> Iterator[str]:
    if not counts["both"]:
        numbers = " and ".join(str(run.require_block().tasks[task].n_docs) for run in (first, second))
        yield f"the documents or prompts differ ({numbers} documents): their scores aren't comparable"
        return
    differ = [f"{name} in {counts[key]}" for key, name in _HASHES.items() if counts[key]]
    if differ:
        yield f"of {counts['both']} documents in both runs, these differ: " + ", ".join(differ)
    if counts["only first"] or counts["only second"]:
        yield (
            f"not the same documents: {counts['both']} are in both runs, {counts['only first']} only in the first,"
            f" {counts['only second']} only in the second"
        )


@dataclass(frozen=True, slots=True)
class SharedTask:
    """One task under one harness in several runs. ``changes``: how the others differ from the run of most documents,
    without those that do not; ``recorded``: do all runs record the whole definition of the task (external results do
    not)?"""

    task: str
    harness: str
    changes: tuple[TaskChange, ...] = ()
    recorded: bool = True


def shared_tasks(runs: Sequence[Run]) -> list[SharedTask]:
    """Each task that several runs have under one harness. The order of the runs does not matter."""
    names = dict(zip(map(id, runs), run_names(runs), strict=True))
    tasks: dict[tuple[str, str], list[Run]] = {}
    for run in {run.path.resolve(): run for run in runs}.values():
        for task in run.tasks:
            tasks.setdefault((run.require_block().harness.name, task), []).append(run)
    shared = []
    for (harness, task), of_task in tasks.items():
        first, *others = sorted(of_task, key=lambda run: (-run.require_block().tasks[task].n_docs, names[id(run)]))
        changes = [task_change(first, other, task, (names[id(first)], names[id(other)])) for other in others]
        if changes:
            differing = tuple(change for change in changes if change.breaks or change.notes)
            shared.append(SharedTask(task, harness, differing, not any(run.is_external for run in of_task)))
    return shared


QuestionDifference = Literal["definition", "prompts"]


@dataclass(frozen=True, slots=True)
class DatedScore:
    """A score with its date and prompts. ``complete``: no document of it failed."""

    score: Score
    created: str
    complete: bool
    context: PromptContext

    @property
    def definition(self) -> str:
        return self.score.task_fingerprint.partition(":")[0]


def current(scores: Iterable[DatedScore]) -> DatedScore | None:
    """A score of the current question: over all documents, newest definition, most common prompts."""
    # A limited run has fewer prompts, hence another fingerprint, without the task having changed.
    complete = [dated for dated in scores if dated.complete and not dated.score.limited]
    if not complete:
        return None
    newest = max(complete, key=lambda dated: dated.created)
    candidates = [dated for dated in complete if dated.definition == newest.definition]
    counts = Counter(dated.score.task_fingerprint for dated in candidates)
    return max(candidates, key=lambda dated: (counts[dated.score.task_fingerprint], dated.created))


def question_difference(dated: DatedScore, question: DatedScore | None) -> QuestionDifference | None:
    """How a score's question differs from the current one; None where it does not, or where this is unknown."""
    if question is None or dated.score.task_fingerprint in (question.score.task_fingerprint, UNKNOWN):
        return None
    if dated.definition != question.definition:
        return "definition"
    if dated.score.limited:  # fewer documents are other prompts too, and have a mark of their own
        return None
    same_documents = (dated.score.n, dated.score.n_total) == (question.score.n, question.score.n_total)
    return None if same_documents and differ_in_template_only(dated.context, question.context) else "prompts"
