"""Did the step of a harness that reads an answer out of a response report one? A low score means little where not.

The status repeats what that step reports, and says nothing on whether the answer is right. Tasks without such a step
(likelihoods, code, scorers that read the response themselves) have none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

Status = Literal["matched", "no_match", "ambiguous", "truncated"]
"""``matched``: one answer was read. ``ambiguous``: the step's pattern matches several different answers, and one was
taken. ``no_match``: none was read. ``truncated``: none was read, and the response ended by its length."""

NOTHING = ("", "NULL", "None", "[invalid]", "[invalidanswer]", "NO ANSWER FOUND")
"""What extractors of both harnesses return where they read nothing (and None)."""


def status_of(answers: Iterable[str], finish_reason: str | None) -> Status:
    """The status of a response.

    Args:
        answers: what could have been taken; empty where nothing was read.
        finish_reason: "length" where the response ended by its length alone; None if not known.
    """
    different = {_normalized(answer) for answer in answers}
    if not different:
        return "truncated" if finish_reason == "length" else "no_match"
    return "matched" if len(different) == 1 else "ambiguous"


def is_nothing(value: Any) -> bool:
    """Does an extractor's value say that it read nothing?"""
    return value is None or (isinstance(value, str) and value.strip() in NOTHING)


def count(statuses: Iterable[Status | None]) -> dict[str, int]:
    """How often each status occurs; None is not counted."""
    return dict(Counter(status for status in statuses if status is not None))


def _normalized(answer: str) -> str:
    """Equal for ``1,000``, ``1000.`` and ``$1000``."""
    return re.sub(r"[\s,$*]+", "", answer).strip(".:;'\"").casefold()
