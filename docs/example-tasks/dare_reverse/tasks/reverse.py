"""Prompt, data and scoring of ``reverse``. Stands alone: lm-eval loads this file by its path."""

import json
from pathlib import Path

MAX_ANSWER = 400
"""Characters of an answer that are read; the right one has six."""


def dataset(**_):
    """The splits, from the files beside this one (lm-eval passes its metadata, unused)."""
    from datasets import Dataset

    here = Path(__file__).parent
    return {
        split: Dataset.from_list([json.loads(line) for line in (here / f"{split}.jsonl").read_text().splitlines()])
        for split in ("train", "test")
    }


def prompt(doc):
    """``reverse 314159=``"""
    return f"reverse {doc['digits']}="


def answer(doc):
    """``951413``"""
    return doc["digits"][::-1]


def score(doc, results):
    """``exact_match``: the digits backwards. ``format``: the given digits in any order."""
    said, right = results[0][:MAX_ANSWER].strip(), answer(doc)
    return {"exact_match": float(said == right), "format": float(sorted(said) == sorted(right))}
