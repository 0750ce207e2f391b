"""Prompt, data and scoring of ``dare_countdown3`` and ``dare_countdown4``. Stands alone: lm-eval loads it by its path.

An answer is read as an arithmetic expression without ever running it: whole numbers, ``+ - * /`` and parentheses, exact
fractions, bounded. A hostile answer (a page of digits, a thousand parentheses, ``30**100**93``) is refused at once: the
length is checked before anything is read, there is no power operator, and every intermediate value is bounded.
"""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

MAX_LENGTH = 64
"""Characters."""
MAX_DEPTH = 8
"""Parentheses inside each other."""
MAX_NUMBERS = 8
MAX_DIGITS = 6
MAX_VALUE = 10**9
"""Bound of every intermediate numerator and denominator."""
DIGITS = "0123456789"


class ExpressionError(ValueError):
    """The text is not an expression of the allowed kind; the message says why."""


class _Reader:
    """Recursive descent: sum -> product -> atom. ``used`` collects the numbers in the order of the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.used: list[int] = []

    def peek(self) -> str:
        while self.text[self.at : self.at + 1] == " ":
            self.at += 1
        return self.text[self.at : self.at + 1]

    def sum(self) -> Fraction:
        value = self.product()
        while (sign := self.peek()) and sign in "+-":
            self.at += 1
            other = self.product()
            value = bounded(value + other if sign == "+" else value - other)
        return value

    def product(self) -> Fraction:
        value = self.atom()
        while (sign := self.peek()) and sign in "*/":
            self.at += 1
            other = self.atom()
            if sign == "/" and other == 0:
                raise ExpressionError("division by zero")
            value = bounded(value * other if sign == "*" else value / other)
        return value

    def atom(self) -> Fraction:
        sign = self.peek()
        if sign == "(":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise ExpressionError(f"more than {MAX_DEPTH} parentheses deep")
            self.at += 1
            value = self.sum()
            if self.peek() != ")":
                raise ExpressionError(f"a parenthesis is not closed at character {self.at}")
            self.at += 1
            self.depth -= 1
            return value
        return self.number()

    def number(self) -> Fraction:
        start = self.at
        while (c := self.text[self.at : self.at + 1]) and c in DIGITS:
            self.at += 1
        digits = self.text[start : self.at]
        if not digits:
            raise ExpressionError(f"expected a number at character {start}")
        if len(digits) > MAX_DIGITS:
            raise ExpressionError(f"a number of {len(digits)} digits; at most {MAX_DIGITS}")
        if len(self.used) == MAX_NUMBERS:
            raise ExpressionError(f"more than {MAX_NUMBERS} numbers")
        self.used.append(int(digits))
        return Fraction(int(digits))


def bounded(value: Fraction) -> Fraction:
    """``value`` itself, or ExpressionError when numerator or denominator grow beyond ``MAX_VALUE``."""
    if abs(value.numerator) > MAX_VALUE or value.denominator > MAX_VALUE:
        raise ExpressionError(f"an intermediate value is beyond {MAX_VALUE}")
    return value


def evaluate(text: str) -> tuple[Fraction, list[int]]:
    """The exact value of ``text`` and the numbers written in it; raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"{len(text)} characters; at most {MAX_LENGTH}")
    reader = _Reader(text)
    value = reader.sum()
    if reader.peek():
        raise ExpressionError(f"unexpected {reader.peek()!r} at character {reader.at}")
    return value, reader.used


def dataset(numbers: int, **_: Any) -> dict[str, Any]:
    """The splits for that many numbers, from any working directory (lm-eval also passes its metadata, unused)."""
    from datasets import Dataset

    here = Path(__file__).parent
    return {
        split: Dataset.from_list(
            [json.loads(line) for line in (here / f"{split}{numbers}.jsonl").read_text().splitlines()]
        )
        for split in ("train", "test")
    }


def prompt(doc: dict[str, Any]) -> str:
    """``make 33 from 3 7 12=``"""
    return f"make {doc['target']} from {' '.join(map(str, doc['numbers']))}="


def answer(doc: dict[str, Any]) -> str:
    """One solution; others count as well."""
    return str(doc["solution"])


def read(text: str) -> str:
    """The expression in an answer: its first line, up to an equals sign (``3*7+12=33`` is read as ``3*7+12``)."""
    return text.strip()[:1000].partition("\n")[0].partition("=")[0].strip()


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """``exact_match``: solved, that is, every given number is used exactly once and the exact value is the target.
    ``format``: an expression that can be read and uses every given number exactly once, whatever its value."""
    try:
        value, used = evaluate(read(results[0]))
    except ExpressionError:
        return {"exact_match": 0.0, "format": 0.0}
    fits = sorted(used) == sorted(doc["numbers"])
    return {"exact_match": float(fits and value == doc["target"]), "format": float(fits)}
