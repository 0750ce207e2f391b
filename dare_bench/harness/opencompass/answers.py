"""Postprocessors of our own configs: how an answer is read from a text where OpenCompass has no function for it."""

from __future__ import annotations

import re

_STATED = re.compile(r"the answer is[:\s]*(-?\d+(?:\.\d+)?)", re.IGNORECASE)
_NUMBER = re.compile(r"-?\d+\.\d+|-?\d+")
NONE = "NULL"
"""What OpenCompass's GSM8K postprocessor says where there is no number."""


def first_stated_number(text: str) -> str:
    """The number after the first "the answer is"; without one, the last number before a further "Question:".

    A base model writes more questions and answers after its own: the first statement is the one that was asked for.
    """
    if statement := _STATED.search(text):
        return statement[1]
    numbers = _NUMBER.findall(text.split("Question:")[0])
    return numbers[-1] if numbers else NONE
