"""What a harness returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class HarnessResult:
    """Scores and samples, in the harness's names and keys; all of it is plain JSON.

    ``results``: lm-eval's dictionary without ``samples``. ``samples``: per task, lm-eval's logged samples (one per
    document and filter; ``doc_id`` is the document's index in the whole data set); ``_answers`` in a row lists what is
    known of each of the document's answers (``extraction``, ``extracted``, ``verdict``).
    ``fingerprints``: per task, ``<definition>:<documents>``, two hashes; the first is that of prompt templates, filters
    and scorer source and does not depend on which documents were requested, the second that of the rendered prompts
    and targets of all requested documents, answered or not.
    ``extraction``: per task and filter, how many answers were ``matched``, ``no_match``, ``ambiguous``, ``truncated``.
    ``execution``: how generated code was run: ``level``, ``unsafe``, ``statuses`` with their counts; None if none was.
    ``data``: per task, where its documents came from (``hub ID@REVISION``, files), if that is known.
    ``failures``: documents left out of the scores because one of their requests got no answer: task, doc_id, error.
    """

    results: dict[str, Any]
    samples: dict[str, list[dict[str, Any]]]
    fingerprints: dict[str, str]
    notes: list[str] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    extraction: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict)
    execution: dict[str, Any] | None = None
    data: dict[str, str] = field(default_factory=dict)
