"""The numbers in an OpenCompass evaluator's result: totals, documents' verdicts, and their unit.

OpenCompass reports totals, mostly percentages, and details only from some evaluators.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CORRECT = ("correct", "is_correct", "cascade_correct")
"""The keys under which OpenCompass's own statistics look for a document's verdict in its details."""
_PERCENT = re.compile(
    r"accuracy|.*[-_]accuracy|score|exact_match|f1|bleu|rouge(1|2|L|Lsum|_?[12l])|(.*_)?pass@\d+", re.IGNORECASE
)
"""Metrics that OpenCompass 0.5.4's general evaluators (accuracy, exact match, ROUGE, BLEU, pass@k) give in percent."""
_UNKNOWN = re.compile(r"loss|ppl|perplex|error|bpb|toxic|length|time", re.IGNORECASE)


def numbers(result: Mapping[str, Any]) -> dict[str, float]:
    """The scores in an evaluator's result. Integers are counts, unless there are only integers."""
    values = {str(name): value for name, value in result.items() if _is_number(value)}
    scores = {name: float(value) for name, value in values.items() if not _is_integer(value)}
    return scores or {name: float(value) for name, value in values.items()}


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except TypeError:
        return False


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) or (getattr(value, "dtype", None) is not None and value.dtype.kind in "iu")


def detail_rows(result: Mapping[str, Any]) -> list[Any]:
    """The details of an evaluator, one for each document; empty if it has none."""
    details = result.get("details")
    if isinstance(details, Mapping):
        return [row for name, row in details.items() if name != "type"]  # "GEN" or "PPL", before the documents
    return list(details) if isinstance(details, Sequence) and not isinstance(details, str) else []


def verdicts(rows: Sequence[Any], count: int) -> list[float] | None:
    """0 or 1 for each document, from an evaluator's details; None if it has none, or not for all."""
    if len(rows) != count:
        return None
    for name in _CORRECT:
        values = [row.get(name) if isinstance(row, Mapping) else None for row in rows]
        if all(isinstance(value, (bool, int, float)) or hasattr(value, "item") for value in values):
            return [float(value) for value in values if value is not None]
    return None


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def has_mean(values: Sequence[float], total: float) -> bool:
    """Is ``total`` the mean of ``values``?"""
    return bool(values) and math.isclose(mean(values), total, rel_tol=1e-6, abs_tol=1e-9)


def in_unit_of(total: float, values: Sequence[float]) -> list[float] | None:
    """Documents' verdicts in the unit of their total, percent or share; None if the total is not their mean."""
    candidates = ([unit * value for value in values] for unit in (100.0, 1.0))
    return next((scaled for scaled in candidates if has_mean(scaled, total)), None)


def as_share(metric: str, total: float, values: Sequence[float] | None) -> float:
    """The factor that converts a metric to a fraction from 0 to 1.

    OpenCompass reports percentages. A value outside 0 to 100 is not a percentage and stays as it is, and so does a
    score none of whose documents exceeds 1. A total of at most 1 without documents' values may be either
    (:func:`unclear`): it is a percentage if OpenCompass's evaluators report that metric in percent.
    """
    if values is not None and any(values) and max(values) <= 1.0:
        return 1.0
    if unclear(total, values) and not _PERCENT.fullmatch(metric):
        return 1.0
    return 0.01 if 0.0 <= total <= 100.0 else 1.0


def unclear(total: float, values: Sequence[float] | None) -> bool:
    """Could the total be a fraction as well as a percentage?"""
    return values is None and 0.0 < total <= 1.0


def higher_is_better(metrics: Iterable[str]) -> dict[str, bool | None]:
    """OpenCompass does not define it; nearly all its scores are accuracies. Other names are unknown (None)."""
    return {metric: None if _UNKNOWN.search(metric) else True for metric in metrics}
