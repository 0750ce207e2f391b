"""Which document of one run is which of another, when two harnesses number and store them in their own ways."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal

from dare_bench.runs.index import Document

MatchedBy = Literal["prompt", "question", "document id"]
"""By what a pair was found: the same prompt text, the same question in the document, or only the same number."""

QUESTION = ("question", "problem", "query", "input", "ctx", "prompt", "text", "origin_prompt", "goal", "sentence")
"""Columns that hold what is asked, the surest first."""

Keyed = tuple[str, str | None, str | None]


def match(first: Iterable[Document], second: Iterable[Document]) -> list[tuple[str, str, MatchedBy]]:
    """Pairs of document ids, in the order of ``first``, each document in one pair at most.

    First by equal prompts, then by equal questions; what is left goes by its number, but only if both runs have the
    same number of documents. Equal keys pair in order.
    """
    ours, theirs = list(map(_keys, first)), list(map(_keys, second))
    equal_counts = len(ours) == len(theirs)
    pairs: dict[str, tuple[str, MatchedBy]] = {}
    steps: list[tuple[MatchedBy, Callable[[Keyed], Hashable | None]]] = [
        ("prompt", lambda keys: keys[1]),
        ("question", lambda keys: keys[2]),
    ]
    if equal_counts:
        steps.append(("document id", lambda keys: keys[0]))
    for how, key in steps:
        waiting: dict[Hashable, list[str]] = defaultdict(list)
        taken = {other for other, _ in pairs.values()}
        for keys in theirs:
            if keys[0] not in taken and key(keys) is not None:
                waiting[key(keys)].append(keys[0])
        for keys in ours:
            if keys[0] not in pairs and waiting.get(key(keys)):
                pairs[keys[0]] = (waiting[key(keys)].pop(0), how)
    return [(keys[0], *pairs[keys[0]]) for keys in ours if keys[0] in pairs]


def _keys(document: Document) -> Keyed:
    """A document's id as text, its first prompt, its question."""
    row = document.rows[0]
    argument: Any = next(iter((row.get("arguments") or {}).values()), None)
    prompt = argument.get("arg_0") if isinstance(argument, Mapping) else None
    return str(document.doc_id), None if prompt is None else str(prompt), question(row.get("doc"))


def question(doc: Any) -> str | None:
    """What a document asks, without regard to case, spaces and typography; None if no column says it."""
    if isinstance(doc, str):
        return _normal(doc)
    if not isinstance(doc, Mapping):
        return None
    for name in QUESTION:
        if isinstance(doc.get(name), str) and doc[name].strip():
            return _normal(doc[name])
    return None


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())
