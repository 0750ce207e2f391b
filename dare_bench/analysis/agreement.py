"""Agreement of two runs of one checkpoint, document by document: same prompt, same tokens, same score?

It compares one data set under two harnesses. Documents are matched by their contents; token ids come from the traces
(the last one written at each position) and, where a run has none, the text of the responses is compared instead.
"""

from __future__ import annotations

import math
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from dare_bench.analysis.document_view import DocumentView, document_view
from dare_bench.analysis.pairing import score_of
from dare_bench.analysis.settings import differing_settings
from dare_bench.analysis.unmasking import final_tokens
from dare_bench.errors import UsageError, unknown
from dare_bench.runs.index import Document
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import Score

Basis = Literal["token ids", "text", "likelihoods"]
"""What answers are compared by."""
MatchedBy = Literal["prompt", "question", "document id"]
"""How a pair was matched: by equal prompts, by the same question in the document, or only by the same number."""

QUESTION = ("question", "problem", "query", "input", "ctx", "prompt", "text", "origin_prompt", "goal", "sentence")
"""Columns that hold the question, the most reliable first."""


@dataclass(frozen=True, slots=True)
class DocumentSide:
    """One document in one run. ``read`` is what the harness extracted from each answer."""

    doc_id: int | str
    prompt: str
    answer: str
    read: str
    target: str
    value: float | None


@dataclass(frozen=True, slots=True)
class DocumentPair:
    """A document in both runs. ``same_tokens`` is None where a run has no answer of that document to compare."""

    first: DocumentSide
    second: DocumentSide
    how: MatchedBy
    same_prompt: bool
    same_tokens: bool | None
    basis: Basis

    @property
    def same_score(self) -> bool:
        a, b = self.first.value, self.second.value
        return a == b or (a is not None and b is not None and math.isclose(a, b, abs_tol=1e-9))


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two runs of one task. ``only_first`` and ``only_second`` count unmatched documents; ``settings`` are the
    differing settings by name; ``pairs`` are in the first run's order."""

    first: Run
    second: Run
    score_first: Score
    score_second: Score
    pairs: list[DocumentPair]
    only_first: int
    only_second: int
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def same_tokens(self) -> int:
        return sum(pair.same_tokens is True for pair in self.pairs)

    @property
    def same_scores(self) -> int:
        return sum(pair.same_score for pair in self.pairs)

    @property
    def differing(self) -> list[DocumentPair]:
        """Documents whose scores differ."""
        return [pair for pair in self.pairs if not pair.same_score]


def agreement(
    first: Run,
    second: Run,
    tasks: tuple[str | None, str | None] = (None, None),
    scores: tuple[str | None, str | None] = (None, None),
) -> Agreement:
    """Compare one task of two runs, document by document.

    Args:
        tasks: the task in each run; needed only where a run has several and the other has none of that name.
        scores: the score in each run as "metric,filter"; None: the task's headline.

    Raises:
        UsageError: the task or score is ambiguous, or a run does not have it.
        RunError: a run has no results or no sample lines.
    """
    names = _tasks(first, second, tasks)
    score_first, score_second = score_of(first, names[0], scores[0]), score_of(second, names[1], scores[1])
    left, right = (run.require_index(task) for run, task in zip((first, second), names, strict=True))
    pairs = [
        _pair(left.document(a), right.document(b), how, score_first, score_second) for a, b, how in match(left, right)
    ]
    unmatched = len(left) - len(pairs), len(right) - len(pairs)
    settings = differing_settings(first, second, *names)
    return Agreement(first, second, score_first, score_second, pairs, *unmatched, settings)


def _tasks(first: Run, second: Run, requested: tuple[str | None, str | None]) -> tuple[str, str]:
    for run, name in zip((first, second), requested, strict=True):
        run.require_block()
        if name is not None and name not in run.tasks:
            raise unknown("task", name, run.tasks, place=run.name)
    a, b = requested
    shared = [name for name in first.tasks if name in second.tasks]
    if a is None and b is None and len(shared) == 1:
        a = b = shared[0]
    a = a or (first.tasks[0] if len(first.tasks) == 1 else b if b in first.tasks else None)
    b = b or (second.tasks[0] if len(second.tasks) == 1 else a if a in second.tasks else None)
    if a is None or b is None:
        raise UsageError(
            f"several tasks could be compared: the first run has {', '.join(first.tasks[:5])},"
            f" the second {', '.join(second.tasks[:5])}; select them: --task FIRST=SECOND"
        )
    return a, b


def _pair(first: Document, second: Document, how: MatchedBy, score_first: Score, score_second: Score) -> DocumentPair:
    a, b = document_view(first), document_view(second)
    same, basis = same_answers(first, second, a, b)
    sides = document_side(first, a, score_first), document_side(second, b, score_second)
    return DocumentPair(*sides, how, a.prompts == b.prompts, same, basis)


def document_side(document: Document, view: DocumentView, score: Score) -> DocumentSide:
    """One document of a run with its value of ``score``."""
    row = next((row for row in document.rows if row.get("filter") == score.filter), document.rows[0])
    extracted = [str(entry["extracted"]) for entry in row.get("dare_bench") or () if entry.get("extracted") is not None]
    filtered = next((result.filtered for result in view.filter_results if result.filter == row.get("filter")), "")
    if view.kind == "generate":
        answer = "\n---\n".join(answer.text for answer in view.answers)
    else:
        answer = "\n".join(f"{choice.value}\t{choice.text}" for choice in view.answers)
    return DocumentSide(
        doc_id=document.doc_id,
        prompt="\n\n".join(view.prompts),
        answer=answer,
        read="\n---\n".join(extracted) if extracted else filtered,
        target=str(row.get("target", "")),
        value=_number(row.get(score.metric)),
    )


def _number(value: Any) -> float | None:
    """A document's score; the mean of several (IFEval's instructions)."""
    values = value if isinstance(value, list) and value else [value]
    if all(isinstance(part, (bool, int, float)) and math.isfinite(part) for part in values):
        return sum(values) / len(values)
    return None


def same_answers(
    first: Document, second: Document, a: DocumentView, b: DocumentView, *, tolerance: float = 0.0
) -> tuple[bool | None, Basis]:
    """Are all answers of a document in two runs equal, log-likelihoods up to ``tolerance`` (relative, or nats below 1),
    and what were they compared by? ``a`` and ``b`` are the documents' views."""
    if "score" in (a.kind, b.kind):
        if a.kind != b.kind or not a.answers:
            return None, "likelihoods"
        pairs = zip_longest(*([answer.value for answer in view.answers] for view in (a, b)))
        return all(_close(one, other, tolerance) for one, other in pairs), "likelihoods"
    ids = token_ids(first), token_ids(second)
    if None not in ids:
        return ids[0] == ids[1], "token ids"
    texts = [[answer.text for answer in view.answers] for view in (a, b)]
    return (texts[0] == texts[1] if all(texts) else None), "text"


def _close(first: float | None, second: float | None, tolerance: float) -> bool:
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=tolerance, abs_tol=tolerance)


def token_ids(document: Document) -> list[list[int | None]] | None:
    """The token ids of each generated answer, in the order of the answers; None if an answer has no trace.

    A position that no event wrote is None: it was given, or is still masked.
    """
    answers = []
    for record in document.answers:
        trace = document.traces.get(str(record.get("trace_ref")))
        if trace is None:
            return None
        final = final_tokens(trace)
        answers.append([final.get(position) for position in range(len(trace["pieces"]))])
    return answers or None


def match(first: Iterable[Document], second: Iterable[Document]) -> list[tuple[str, str, MatchedBy]]:
    """Pairs of document ids, in the order of ``first``, each document in at most one pair.

    Equal prompts are matched first, then equal questions; the rest by number, but only if both runs have the same
    number of documents. Equal keys pair in order.
    """
    left, right = list(map(_keys, first)), list(map(_keys, second))
    methods: list[MatchedBy] = ["prompt", "question"]
    if len(left) == len(right):
        methods.append("document id")
    pairs: dict[str, tuple[str, MatchedBy]] = {}
    for method in methods:
        unmatched: dict[str | None, list[str]] = defaultdict(list)
        taken = {doc for doc, _ in pairs.values()}
        for keys in right:
            if keys["document id"] not in taken and keys[method] is not None:
                unmatched[keys[method]].append(str(keys["document id"]))
        for keys in left:
            doc = str(keys["document id"])
            if doc not in pairs and unmatched.get(keys[method]):
                pairs[doc] = (unmatched[keys[method]].pop(0), method)
    docs = (str(keys["document id"]) for keys in left)
    return [(doc, *pairs[doc]) for doc in docs if doc in pairs]


def _keys(document: Document) -> dict[MatchedBy, str | None]:
    """What a document can be matched by: its first prompt, its question, its id as text."""
    row = document.rows[0]
    argument: Any = next(iter((row.get("arguments") or {}).values()), None)
    prompt = argument.get("arg_0") if isinstance(argument, Mapping) else None
    return {
        "prompt": None if prompt is None else str(prompt),
        "question": question(row.get("doc")),
        "document id": str(document.doc_id),
    }


def question(doc: Any) -> str | None:
    """A document's question, without regard to case, spaces and typography; None if no column holds one."""
    if isinstance(doc, str):
        return _normalized(doc)
    if not isinstance(doc, Mapping):
        return None
    texts = (doc[name] for name in QUESTION if isinstance(doc.get(name), str) and doc[name].strip())
    return next(map(_normalized, texts), None)


def _normalized(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
