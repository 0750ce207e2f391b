"""Confidence intervals of a run's metrics, computed from its sample lines when the results are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from dare_bench.analysis.intervals import Interval, from_stderr, group_interval, interval, ratio_interval
from dare_bench.runs.results import document_count, metric_keys, stderr_of, value_range, weights_of
from dare_bench.runs.schema import CI
from dare_bench.runs.writer import plain


def confidence_intervals(
    results: Mapping[str, Any], samples: Mapping[str, Iterable[Mapping[str, Any]]]
) -> dict[str, dict[str, CI]]:
    """The ``ci`` part of the ``dare_bench`` block: by task, then by "metric,filter".

    ``results`` is lm-eval's dict, ``samples`` its logged samples by task. The interval comes from the documents' values
    where the reported score is their mean (or the mean over all their parts), that of a group from the intervals of its
    tasks where its score is their mean; else from lm-eval's standard error; a metric with neither has no entry. Every
    interval stays within the range of its metric.
    """
    rows = {**results.get("groups", {}), **results.get("results", {})}
    groups = {name for name, parts in results.get("group_subtasks", {}).items() if parts}
    intervals: dict[str, dict[str, Interval]] = {name: {} for name in rows}
    for name in sorted(rows, key=lambda name: name in groups):  # groups need their tasks' intervals
        values = {} if name in groups else _values_by_key(samples.get(name, ()))
        for metric, filter_name, value in metric_keys(rows[name]):
            key = f"{metric},{filter_name}"
            estimate = None
            if name not in groups:
                estimate = _of_documents(values.get(key, []), value)
            elif (weights := weights_of(results, rows, name, key)) and all(key in intervals[task] for task in weights):
                parts = [intervals[task][key] for task in weights]
                estimate = group_interval(parts, [float(rows[task][key]) for task in weights], list(weights.values()))
            stderr = stderr_of(rows[name], metric, filter_name)
            if estimate is None and stderr is not None:
                estimate = from_stderr(value, stderr, document_count(results, name))
            if estimate is not None:
                intervals[name][key] = estimate.within(*value_range(metric, value))
    return {
        name: {key: CI(method=ci.method, level=ci.level, lo=ci.lo, hi=ci.hi, n=ci.n) for key, ci in by_key.items()}
        for name, by_key in intervals.items()
        if by_key
    }


def _values_by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for metric in row.get("metrics", ()):
            if metric in row:
                values.setdefault(f"{metric},{row.get('filter', 'none')}", []).append(plain(row[metric]))
    return values


def _of_documents(values: list[Any], reported: float) -> Interval | None:
    """The interval from documents' values, if the reported score is a mean of them; else None."""
    if values and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        if math.isclose(sum(values) / len(values), reported, rel_tol=1e-6, abs_tol=1e-9):
            return interval(values)
        return None
    if values and all(isinstance(v, (list, tuple)) and all(isinstance(x, (int, float)) for x in v) for v in values):
        sums, counts = [float(sum(v)) for v in values], [float(len(v)) for v in values]
        if sum(counts) and math.isclose(sum(sums) / sum(counts), reported, rel_tol=1e-6, abs_tol=1e-9):
            return ratio_interval(sums, counts)
    return None
