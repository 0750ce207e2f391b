"""Do two scores of one task answer the same question? And which of many is the question as it is asked now?

The newest whole run tells the task's present definition (prompt templates, filters, scorer): a score under another one
is out of date. Under that definition the prompts that most whole runs asked are the question; a score with others
(examples, documents) answers something else. Where each of two checkpoints has a chat template of its own, the prompts
differ by it alone and are meant to: that is the same question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dare_bench.runs.reader import Run
from dare_bench.runs.results import members
from dare_bench.runs.scores import Score

Difference = Literal["definition", "prompts"]


@dataclass(frozen=True, slots=True)
class Around:
    """What a run put around a task's documents: the chat template ("": none), the number of examples of each of its
    tasks, and all else."""

    template: str
    shots: tuple[Any, ...]
    rest: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Asked:
    """A score with what it answers. ``whole``: no document of it failed."""

    score: Score
    created: str
    whole: bool
    around: Around


def around(run: Run, task: str) -> Around:
    """What a run put around the documents of a task or group."""
    results = run.results
    template = results.get("chat_template_sha") or results.get("chat_template") or ""
    shots = tuple(results.get("n-shot", {}).get(member) for member in members(results, task))
    examples = (run.block.seeds[3], results.get("fewshot_as_multiturn")) if run.block and any(shots) else ()
    return Around(str(template), shots, (results.get("system_instruction"), examples))


def own_templates(one: Around, other: Around) -> bool:
    """Has each a chat template of its own, and is all else around the documents the same?"""
    return (
        bool(one.template and other.template)
        and one.template != other.template
        and (one.shots, one.rest) == (other.shots, other.rest)
    )


def present(seen: Iterable[Asked]) -> Asked | None:
    """What is asked now: of the scores of all documents under the newest definition one with the most usual prompts."""
    # A limited run has fewer prompts, hence another fingerprint, without the task having changed.
    whole = [one for one in seen if one.whole and not one.score.limited]
    if not whole:
        return None
    last = max(whole, key=lambda one: one.created)
    same = [one for one in whole if _definition(one) == _definition(last)]
    usual = Counter(one.score.task_fingerprint for one in same)
    return max(same, key=lambda one: (usual[one.score.task_fingerprint], one.created))


def _definition(one: Asked) -> str:
    return one.score.task_fingerprint.partition(":")[0]


def difference(one: Asked, now: Asked | None) -> Difference | None:
    """How a score's question is another than the one that is asked now; None where it is not, or nobody knows."""
    if now is None or one.score.task_fingerprint == now.score.task_fingerprint:
        return None
    if _definition(one) != _definition(now):
        return "definition"
    if one.score.limited:  # fewer documents are other prompts too, and that is said already
        return None
    same_documents = (one.score.n, one.score.n_total) == (now.score.n, now.score.n_total)
    return None if same_documents and own_templates(one.around, now.around) else "prompts"
