"""Scoring of HumanEval's infilling: the completed function against its tests, as in lm-eval."""

from __future__ import annotations

from typing import Any

import evaluate

CODE = evaluate.load("code_eval")


def pass_at_1(references: list[str], predictions: list[list[str]]) -> float:
    """The share of answers that pass the tests."""
    return float(CODE.compute(references=references, predictions=predictions, k=[1])[0]["pass@1"])


def completed(resps: list[list[str]], docs: list[dict[str, Any]]) -> list[list[str]]:
    """The functions with their middles."""
    return [[doc["prompt"] + text + doc["suffix"] for text in texts] for texts, doc in zip(resps, docs, strict=True)]
