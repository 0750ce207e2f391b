"""Confidence intervals of a run's metrics, made from its sample lines when the results are written."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dare_bench.runs.schema import CI
from dare_bench.runs.writer import plain
from dare_bench.stats import Interval, from_stderr, group_interval, interval, ratio_interval

_RANGES = {
    "bleu": (0.0, 100.0),
    "chrf": (0.0, 100.0),
    "ter": (0.0, math.inf),
    "bits_per_byte": (0.0, math.inf),
    "brier_score": (0.0, 2.0),
    "mcc": (-1.0, 1.0),
}
"""Of metrics that are no shares, whatever their value."""


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
    values where the reported score is their mean (or the mean over all their parts), that of a group from the intervals
    of its tasks where its score is their mean; else from lm-eval's standard error; a metric with neither has no entry.
    None leaves the range of its metric.
    """
    rows = {**results.get("groups", {}), **results.get("results", {})}
    groups = {name for name, parts in results.get("group_subtasks", {}).items() if parts}
    made: dict[str, dict[str, Interval]] = {name: {} for name in rows}
    for name in sorted(rows, key=lambda name: name in groups):  # groups need their tasks' intervals
        values = {} if name in groups else _values_by_key(samples.get(name, ()))
        for metric, filter_name, value in metric_keys(rows[name]):
            key = f"{metric},{filter_name}"
            if name in groups:
                found = _of_tasks(results, rows, name, key, made)
            else:
                found = _of_documents(values.get(key, []), value, level)
            stderr = stderr_of(rows[name], metric, filter_name)
            if found is None and stderr is not None:
                found = from_stderr(value, stderr, _count(results, name), level)
            if found is not None:
                made[name][key] = found.within(*value_range(metric, value))
    return {
        name: {key: CI(method=one.method, level=one.level, lo=one.lo, hi=one.hi, n=one.n) for key, one in own.items()}
        for name, own in made.items()
        if own
    }


def value_range(metric: str, *values: float) -> tuple[float, float]:
    """The least and the largest value that a metric can have; (0, 1) are shares. ``metric`` may be lm-eval's
    "metric,filter"; one whose name says nothing is a share if all ``values`` are."""
    name = metric.partition(",")[0]
    if name in _RANGES:
        return _RANGES[name]
    if "perplexity" in name or "loss" in name:
        return (1.0 if "perplexity" in name else 0.0), math.inf
    return (0.0, 1.0) if all(0.0 <= value <= 1.0 for value in values) else (-math.inf, math.inf)


def _of_tasks(
    results: Mapping[str, Any],
    rows: Mapping[str, Mapping[str, Any]],
    group: str,
    key: str,
    made: Mapping[str, Mapping[str, Interval]],
) -> Interval | None:
    """A group's interval from those of its tasks, if its score is their mean and all have one."""
    weights = weights_of(results, rows, group, key)
    if weights is None or not all(key in made.get(task, {}) for task in weights):
        return None
    values = [float(rows[task][key]) for task in weights]
    return group_interval([made[task][key] for task in weights], values, list(weights.values()))


def weights_of(
    results: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]], name: str, key: str
) -> dict[str, float] | None:
    """How much of a group's score each of its tasks is, at any depth: by their numbers of documents or all alike,
    whichever gives the score; None where neither does."""
    parts = list(results.get("group_subtasks", {}).get(name) or ())
    if not parts:
        return {name: 1.0}
    values = [float(row[key]) for part in parts if isinstance((row := rows.get(part, {})).get(key), (int, float))]
    sizes = [_count(results, part) for part in parts]
    if len(values) < len(parts) or not all(sizes):
        return None
    for sized in (sizes, [1] * len(parts)):
        shares = [size / sum(sized) for size in sized]
        mean = math.fsum(share * value for share, value in zip(shares, values, strict=True))
        if math.isclose(mean, rows[name][key], rel_tol=1e-6, abs_tol=1e-9):
            break
    else:
        return None
    found: dict[str, float] = {}
    for part, share in zip(parts, shares, strict=True):
        inner = weights_of(results, rows, part, key)
        if inner is None:
            return None
        for task, weight in inner.items():
            found[task] = found.get(task, 0.0) + share * weight
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
