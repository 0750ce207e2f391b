"""Do two scores of one task answer the same question? And which of many is the question as it is asked now?

The newest whole run says what the task's present definition is (prompt templates, filters, scorer): a score under
another one is out of date. Under that definition the prompts of most whole runs are the question; a score with others
(examples, documents) answers something else. Where each of two checkpoints has a chat template of its own, the prompts
differ by it alone and are meant to: that is the same question.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dare_bench.analysis.settings import PromptContext, own_templates
from dare_bench.runs.scores import Score

QuestionDifference = Literal["definition", "prompts"]


@dataclass(frozen=True, slots=True)
class DatedScore:
    """A score with what it answers. ``whole``: no document of it failed."""

    score: Score
    created: str
    whole: bool
    context: PromptContext

    @property
    def definition(self) -> str:
        return self.score.task_fingerprint.partition(":")[0]


def present(scores: Iterable[DatedScore]) -> DatedScore | None:
    """What is asked now: of the scores of all documents under the newest definition one with the most usual prompts."""
    # A limited run has fewer prompts, hence another fingerprint, without the task having changed.
    whole = [dated for dated in scores if dated.whole and not dated.score.limited]
    if not whole:
        return None
    last = max(whole, key=lambda dated: dated.created)
    same = [dated for dated in whole if dated.definition == last.definition]
    usual = Counter(dated.score.task_fingerprint for dated in same)
    return max(same, key=lambda dated: (usual[dated.score.task_fingerprint], dated.created))


def question_difference(dated: DatedScore, now: DatedScore | None) -> QuestionDifference | None:
    """How a score's question is another than the one that is asked now; None where it is not, or nobody knows."""
    if now is None or dated.score.task_fingerprint == now.score.task_fingerprint:
        return None
    if dated.definition != now.definition:
        return "definition"
    if dated.score.limited:  # fewer documents are other prompts too, and that is said already
        return None
    same_documents = (dated.score.n, dated.score.n_total) == (now.score.n, now.score.n_total)
    return None if same_documents and own_templates(dated.context, now.context) else "prompts"
