"""The contribution of each document to a score. OpenCompass reports totals, and details only from some evaluators.

A list of values is used only if its mean equals the total, so an interval is never based on a guess.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from dare_bench.opencompass_numbers import detail_rows, has_mean, in_unit_of, numbers, verdicts

_BUDGET = 120.0
"""Maximum seconds to score documents one by one; afterwards the score has no interval."""

Single = Callable[[int], Mapping[str, Any]]
"""The evaluator's result for the one document at this position."""


def by_document(result: Mapping[str, Any], count: int, single: Single | None) -> dict[str, list[float]]:
    """{metric: value of each document, in the unit of the total} for the metrics where that is known.

    The first score's values are the evaluator's verdicts, if it has them; all others come from scoring the
    documents one by one.
    """
    totals = numbers(result)
    by_metric: dict[str, list[float]] = {}
    of_evaluator = verdicts(detail_rows(result), count)
    first = next(iter(totals), None)
    if of_evaluator is not None and first is not None:
        scaled = in_unit_of(totals[first], of_evaluator)
        if scaled is not None:
            by_metric[first] = scaled
    if single is None or all(name in by_metric for name in totals):
        return by_metric
    rows = _one_by_one(single, count)
    for name, total in totals.items():
        values = [row[name] for row in rows if name in row]
        if name not in by_metric and len(values) == count and has_mean(values, total):
            by_metric[name] = values
    return by_metric


def _one_by_one(single: Single, count: int) -> list[dict[str, float]]:
    """Results of single documents; incomplete, and so not used, if it takes too long or one cannot be scored."""
    rows: list[dict[str, float]] = []
    end = time.monotonic() + _BUDGET
    for position in range(count):
        try:
            rows.append(numbers(single(position)))
        except Exception:  # an evaluator that needs more than one document
            break
        if time.monotonic() > end:
            break
    return rows
