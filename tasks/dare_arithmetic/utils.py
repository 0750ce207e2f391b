"""Prompt, data and scoring of ``dare_arithmetic``. Stands alone: lm-eval loads this file by its path."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"[+-]?[0-9]{1,12}")
"""The whole answer must be this."""


def dataset(**_: Any) -> dict[str, Any]:
    """The splits that lie beside this file, from any working directory (lm-eval passes its metadata, unused)."""
    from datasets import Dataset

    here = Path(__file__).parent
    return {
        split: Dataset.from_list([json.loads(line) for line in (here / f"{split}.jsonl").read_text().splitlines()])
        for split in ("train", "test")
    }


def prompt(doc: dict[str, Any]) -> str:
    """``27+48=``"""
    return f"{doc['a']}{doc['op']}{doc['b']}="


def answer(doc: dict[str, Any]) -> str:
    """``75``"""
    return str(doc["answer"])


def score(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """``exact_match``: the answer is the number. ``digit_accuracy``: the share of its characters (digits and minus
    sign, counted from the right) that are right; 0 for an answer that is no number."""
    said, right = results[0].strip()[:200], answer(doc)
    if not NUMBER.fullmatch(said):
        return {"exact_match": 0.0, "digit_accuracy": 0.0}
    said = str(int(said))
    same = sum(x == y for x, y in zip(reversed(said), reversed(right), strict=False))
    return {"exact_match": float(said == right), "digit_accuracy": same / max(len(said), len(right))}
