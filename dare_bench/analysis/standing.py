"""Whether two scores of one task answer the same question, and which question is the current one.

The newest complete run has the current definition of the task (prompt templates, filters, scorer): a score under
another definition is out of date. Under that definition the current prompts are those of most complete runs; a score
with other prompts (examples, documents) answers another question. Prompts that differ only by the checkpoints' own chat
templates are the same question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dare_bench.analysis.settings import PromptContext, differ_in_template_only
from dare_bench.runs.schema import UNKNOWN
from dare_bench.runs.scores import Score

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
