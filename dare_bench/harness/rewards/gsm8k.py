"""The reward of GSM8K: the number of an answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

from dare_bench.errors import DataError
from dare_bench.reward_parts import MAX_TEXT, RewardOptions, last_boxed, read_options, tagged
from dare_bench.types import Reward, RewardPrompt

MARK = "####"
"""Precedes the number in GSM8K's solutions."""
NUMBER = re.compile(r"(?:(?<![\w.)])-)?\$?[0-9][0-9,]*(?:\.[0-9]+)?")
MAX_NUMBER = 40
"""Characters of a number that is read."""
SOFT = re.compile(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", re.DOTALL)
STRICT = re.compile(r"<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n?\Z", re.DOTALL)
TAGS = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")


class Gsm8kOptions(RewardOptions):
    """``scheme``: ``exact``, 1 for the right number; ``d1``, the sum of d1's parts (arXiv 2504.12216): 2 for the right
    number, 0.5 if the tags contain digits alone, 0.5 each for its loose and its strict format, up to 0.5 for tags."""

    scheme: Literal["exact", "d1"] = "exact"


def gsm8k(prompts: Sequence[RewardPrompt], texts: Sequence[str], options: Mapping[str, Any]) -> list[Reward]:
    """The number of an answer stands after the last ``####``, else in the last ``\\boxed``, else between answer tags;
    else it is the last number of the text. Numbers are compared by value (``1,000.0`` is ``1000``); raises DataError or
    UsageError.

    Terms: ``correctness``; with ``scheme="d1"`` also ``integer``, ``soft_format``, ``strict_format``, ``tags``.
    """
    scheme = read_options(Gsm8kOptions, options, "gsm8k").scheme
    rewards = []
    for prompt, text in zip(prompts, texts, strict=True):
        if (truth := number_of(prompt.truth)) is None:
            raise DataError(f"{prompt.where}: the truth {prompt.truth!r:.60} has no number, which 'gsm8k' needs")
        text = text[-MAX_TEXT:]
        right = float(number_of(text) == truth)
        terms = {"correctness": right}
        if scheme == "d1":
            terms |= d1_terms(text)
        rewards.append(Reward(value_of(terms) if scheme == "d1" else right, right, terms))
    return rewards


def number_of(text: str) -> Fraction | None:
    """The number that a solution gives as its answer; None if there is none."""
    marked = text.rpartition(MARK)[2] if MARK in text else None
    if marked is not None and (numbers := NUMBER.findall(marked)):
        return read_number(numbers[0])
    for part in (last_boxed(text), tagged(text), text):
        if part is not None and (numbers := NUMBER.findall(part)):
            return read_number(numbers[-1])
    return None


def read_number(text: str) -> Fraction | None:
    """The exact value of ``-1,234.50`` or ``$7``; None for other text, or for a number of too many digits."""
    if not NUMBER.fullmatch(text) or len(text) > MAX_NUMBER:
        return None
    return Fraction(text.replace(",", "").replace("$", ""))


def d1_terms(text: str) -> dict[str, float]:
    """The parts of d1's format reward, each from 0 to 1. Unlike its code, the two formats allow several lines of
    reasoning, and text after the answer costs at most what the tags give."""
    answer = tagged(text) or ""
    after = text.rpartition(TAGS[-1])[2].removeprefix("\n")
    tags = sum(text.count(tag) == 1 for tag in TAGS) / len(TAGS)
    return {
        "integer": float(answer.isascii() and answer.isdigit()),
        "soft_format": float(SOFT.match(text) is not None),
        "strict_format": float(STRICT.match(text) is not None),
        "tags": max(0.0, tags - 0.002 * len(after)) if tags else 0.0,
    }


def value_of(terms: Mapping[str, float]) -> float:
    """d1's weights: 2 for the right number, 0.5 for each part of the format."""
    return 2 * terms["correctness"] + 0.5 * sum(value for name, value in terms.items() if name != "correctness")
