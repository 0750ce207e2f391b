"""What answers a response states, and from that how well a harness could read one out of it.

A harness takes one string from a response. Whether that was an answer, a guess or nothing is told here from the
response itself: the values it boxes, and those that follow words like "the answer is".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["matched", "no_match", "ambiguous", "truncated"]
"""``matched``: one answer was read. ``ambiguous``: several different ones were there and the harness took one.
``no_match``: none was found. ``truncated``: none was stated before the response reached its length."""

NOTHING = ("", "NULL", "None", "[invalid]", "[invalidanswer]", "NO ANSWER FOUND")
"""What extractors return when they found nothing (and None)."""
_MOST_WORDS = 6  # of a response that is nothing but an answer: "The answer is option (B)."

_CUE = r"(?:\banswer\b|\boption is|\bchoice is|####|答案|选项)"
_LINK = r"(?i:\W|is|are|was|be|should|would|equals?|about|the|final|correct|option|choice|text|boxed|是|为|应该?)"
_LETTER = re.compile(
    rf"(?i:{_CUE}){_LINK}{{0,24}}?(?<![A-Za-z])([A-P])(?![A-Za-z'’]|\s+(?:think|believe|would|am|have))"
)
_NUMBER = re.compile(rf"(?i:{_CUE}){_LINK}{{0,24}}?(-?\d[\d,]*(?:\.\d+)?)")
_PHRASE = re.compile(r"(?i)\banswer(?: is| was|:(?!.*\banswer is))\s*:?\s*(.+?)\s*(?:\.(?=\s|$)|\n|$)")


@dataclass(frozen=True, slots=True)
class Reading:
    """The values that a harness could have taken from a response, equal ones as often as they occur. ``guessed``: it
    took one that the response does not call its answer, such as the last number."""

    values: Sequence[str]
    guessed: bool = False

    def status(self, finish_reason: str | None) -> Status:
        """``finish_reason`` is that of the response: "length" where it ended without an end-of-text or stop string."""
        cut = finish_reason == "length"
        different = {plain(value) for value in self.values}
        if not different:
            return "truncated" if cut else "no_match"
        if self.guessed and cut:
            return "truncated"
        return "matched" if len(different) == 1 else "ambiguous"


NOT_FOUND = Reading(())


def is_nothing(value: Any) -> bool:
    """Did an extractor find nothing?"""
    return value is None or (isinstance(value, str) and value.strip() in NOTHING)


def plain(value: str) -> str:
    """A value without what surrounds it, so that equal answers are equal: ``$\\boxed{1,000}$.``, ``(b)``, ``x = 5``."""
    text = value.strip()
    inner = boxed(text)
    if inner and text.strip("$. ").startswith("\\boxed"):
        text = inner[-1]
    text = text.replace("\\left", "").replace("\\right", "").replace("\\,", "").replace("dfrac", "frac")
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"[\s*$]+", "", text).strip(".,:;'\"").casefold()
    if re.fullmatch(r"\([a-z]\)", text):
        text = text[1:-1]
    if re.fullmatch(r"-?\d+\.0+", text):
        text = text.partition(".")[0]
    name, equals, right = text.partition("=")
    return right if equals and re.fullmatch(r"[a-z]\w?", name) else text


def boxed(text: str) -> list[str]:
    """Contents of each ``\\boxed{...}`` or ``\\fbox{...}`` that is closed, in order."""
    found = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth, start = 1, match.end()
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if not depth:
                found.append(text[start:at].strip())
                break
    return [value for value in found if value]


def letters(text: str, options: str) -> list[str]:
    """Option letters that follow a word such as "answer", in order."""
    return [letter for letter in _LETTER.findall(text) if letter in options]


def numbers(text: str) -> list[str]:
    """Numbers that are boxed or follow a word such as "answer", in order."""
    inside = [value for value in boxed(text) if re.fullmatch(r"-?[\d,.]*\d", plain(value))]
    return [*inside, *_NUMBER.findall(text)]


def phrases(text: str) -> list[str]:
    """What follows "answer is", to the end of the sentence."""
    return [value for value in _PHRASE.findall(text) if plain(value)]


def whole(text: str) -> list[str]:
    """The response itself, if it is nothing but an answer: one line of a few words."""
    line = text.strip()
    return [line] if line and "\n" not in line and len(line.split()) <= _MOST_WORDS else []


def stands_alone(letter: str, text: str) -> bool:
    """Is the letter somewhere in the text no part of a word?"""
    return re.search(rf"(?<![A-Za-z]){re.escape(letter)}(?![A-Za-z'’])", text) is not None


def option(text: str, taken: Any, options: str) -> Reading:
    """A letter taken from the text by rules that end with "any such letter"."""
    if is_nothing(taken) or not stands_alone(str(taken), text):
        return NOT_FOUND  # nothing, or the first letter of some word
    named = letters(text, options)
    begins = re.match(rf"[\W_]*{re.escape(str(taken))}(?![A-Za-z'’])", text) is not None
    return Reading([*named, str(taken)], guessed=not named and not begins)


def last_number(text: str, taken: Any) -> Reading:
    """The last number of the text: an answer if it is also called so."""
    if is_nothing(taken):
        return NOT_FOUND
    named = numbers(text)
    return Reading([*named, str(taken)], guessed=not named and plain(text) != plain(str(taken)))


def first_of(*candidates: Iterable[str]) -> Reading:
    """The first of several ways to state an answer that the response uses."""
    return next((Reading(values) for values in map(list, candidates) if values), NOT_FOUND)


def count(statuses: Iterable[Status | None]) -> dict[str, int]:
    """How often each status occurs; None is not counted."""
    return dict(Counter(status for status in statuses if status is not None))
