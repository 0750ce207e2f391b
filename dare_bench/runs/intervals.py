"""Confidence intervals of a run's metrics, made from its sample lines when the results are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dare_bench.runs.schema import CI
from dare_bench.runs.writer import plain
from dare_bench.stats import Interval, from_stderr, interval, ratio_interval


def metric_keys(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(metric, filter, value) of every score in one of lm-eval's result rows; names, counts and errors left out."""
    for key, value in metrics.items():
        name, comma, filter_name = key.partition(",")
        if comma and not name.endswith("_stderr") and isinstance(value, (int, float)) and math.isfinite(value):
            yield name, filter_name, float(value)


def stderr_of(metrics: Mapping[str, Any], metric: str, filter_name: str) -> float | None:
    """lm-eval's standard error of a metric; None where it gives none ("N/A")."""
    value = metrics.get(f"{metric}_stderr,{filter_name}")
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def members(results: Mapping[str, Any], name: str) -> list[str]:
    """The tasks of a group, at any depth; a task alone is its own member."""
    subtasks = results.get("group_subtasks", {})
    found: list[str] = []
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        at = waiting.pop(0)
        if at in seen:  # a damaged file may name a group inside itself
            continue
        seen.add(at)
        children = list(subtasks.get(at) or ())
        waiting += children
        if not children:
            found.append(at)
    return found


def confidence_intervals(
    results: Mapping[str, Any], samples: Mapping[str, Iterable[Mapping[str, Any]]], level: float = 0.95
) -> dict[str, dict[str, CI]]:
    """The ``ci`` part of the ``dare_bench`` block: by task, then by "metric,filter".

    ``results`` is lm-eval's dict, ``samples`` its logged samples by task. The interval comes from the documents' own
    values where the reported score is their mean (or the mean over all their parts); else from lm-eval's standard
    error, as for groups; a metric with neither has no entry.
    """
    found: dict[str, dict[str, CI]] = {}
    for task, metrics in {**results.get("groups", {}), **results.get("results", {})}.items():
        values = _values_by_key(samples.get(task, ()))
        for metric, filter_name, value in metric_keys(metrics):
            key = f"{metric},{filter_name}"
            made = _of_documents(values.get(key, []), value, level)
            stderr = stderr_of(metrics, metric, filter_name)
            if made is None and stderr is not None:
                made = from_stderr(value, stderr, _count(results, task), level)
            if made is not None:
                found.setdefault(task, {})[key] = CI(
                    method=made.method, level=made.level, lo=made.lo, hi=made.hi, n=made.n
                )
    return found


def _values_by_key(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    values: dict[str, list[Any]] = {}
    for row in rows:
        for metric in row.get("metrics", ()):
            if metric in row:
                values.setdefault(f"{metric},{row.get('filter', 'none')}", []).append(plain(row[metric]))
    return values


def _of_documents(values: list[Any], reported: float, level: float) -> Interval | None:
    """The interval from documents' values, if the reported score is a mean of them; else None."""
    if values and all(isinstance(v, (int, float)) and math.isfinite(v) for v in values):
        if math.isclose(sum(values) / len(values), reported, rel_tol=1e-6, abs_tol=1e-9):
            return interval(values, level)
        return None
    if values and all(isinstance(v, (list, tuple)) and all(isinstance(x, (int, float)) for x in v) for v in values):
        sums, counts = [float(sum(v)) for v in values], [float(len(v)) for v in values]
        if sum(counts) and math.isclose(sum(sums) / sum(counts), reported, rel_tol=1e-6, abs_tol=1e-9):
            return ratio_interval(sums, counts, level)
    return None


def _count(results: Mapping[str, Any], name: str) -> int:
    """Documents behind a task's or group's score."""
    counts = results.get("n-samples", {})
    return sum(int(counts.get(task, {}).get("effective", 0)) for task in members(results, name))
