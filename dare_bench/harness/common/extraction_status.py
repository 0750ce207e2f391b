"""Did a harness extract an answer from each response, as its extraction step reports? Where it did not, a low score
means little. Tasks without such a step (likelihoods, code, scorers that read the response themselves) have no
status."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

Status = Literal["matched", "no_match", "ambiguous", "truncated"]
"""``matched``: one answer was extracted. ``ambiguous``: the step's pattern matches several different answers, and one
was taken. ``no_match``: none was extracted. ``truncated``: none, and the response ended by its length."""

NOTHING = ("", "NULL", "None", "[invalid]", "[invalidanswer]", "NO ANSWER FOUND")
"""What extractors of both harnesses return if they find nothing (and None)."""


def status_of(answers: Iterable[str], finish_reason: str | None) -> Status:
    """The status of a response, from all candidates for its answer (none: nothing was extracted) and its
    ``finish_reason``: "length" if it ended by its length alone."""
    different = {re.sub(r"[\s,$*]+", "", answer).strip(".:;'\"").casefold() for answer in answers}  # $1,000. is 1000
    if not different:
        return "truncated" if finish_reason == "length" else "no_match"
    return "matched" if len(different) == 1 else "ambiguous"


def is_nothing(value: Any) -> bool:
    """Does an extractor's value mean that it found nothing?"""
    return value is None or (isinstance(value, str) and value.strip() in NOTHING)


def tally(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, dict[str, int]]]:
    """The number of answers with each status, by task, then filter; from ``_answers`` of logged samples."""
    counts: dict[str, dict[str, Counter[str]]] = {}
    for task, rows in samples.items():
        for row in rows:
            statuses = [answer["extraction"] for answer in row.get("_answers", ()) if "extraction" in answer]
            if statuses:
                counts.setdefault(task, {}).setdefault(row["filter"], Counter()).update(statuses)
    return {task: {name: dict(counter) for name, counter in by_filter.items()} for task, by_filter in counts.items()}
