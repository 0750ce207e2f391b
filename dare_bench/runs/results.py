"""lm-eval's result tables: names and ranges of scores, tasks and weights of a group."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_RANGES = {
    "bleu": (0.0, 100.0),
    "chrf": (0.0, 100.0),
    "ter": (0.0, math.inf),
    "bits_per_byte": (0.0, math.inf),
    "brier_score": (0.0, 2.0),
    "mcc": (-1.0, 1.0),
}
"""Ranges of metrics that are not shares."""


def metric_keys(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(metric, filter, value) of every score in one of lm-eval's result rows; names, counts and errors left out."""
    for key, value in metrics.items():
        name, comma, filter_name = key.partition(",")
        if comma and not name.endswith("_stderr") and isinstance(value, (int, float)) and math.isfinite(value):
            yield name, filter_name, float(value)


def stderr_of(metrics: Mapping[str, Any], metric: str, filter_name: str) -> float | None:
    """lm-eval's standard error of a metric; None for "N/A"."""
    value = metrics.get(f"{metric}_stderr,{filter_name}")
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def members(results: Mapping[str, Any], name: str) -> list[str]:
    """The tasks of a group, at any depth; of a task, the task itself."""
    subtasks = results.get("group_subtasks", {})
    names = [name]  # grows while it is read
    for group in names:
        names += [part for part in dict.fromkeys(subtasks.get(group) or ()) if part not in names]
    return [part for part in names if not subtasks.get(part)]


def value_range(metric: str, *values: float) -> tuple[float, float]:
    """The minimum and maximum of a metric; (0, 1) for shares. ``metric`` may be lm-eval's "metric,filter"; an unknown
    one is a share if all ``values`` are."""
    name = metric.partition(",")[0]
    if name in _RANGES:
        return _RANGES[name]
    if "perplexity" in name or "loss" in name:
        return (1.0 if "perplexity" in name else 0.0), math.inf
    return (0.0, 1.0) if all(0.0 <= value <= 1.0 for value in values) else (-math.inf, math.inf)


def weights_of(
    results: Mapping[str, Any], rows: Mapping[str, Mapping[str, Any]], name: str, key: str
) -> dict[str, float] | None:
    """The weight of each task in a group's score, at any depth: by number of documents or equal, whichever reproduces
    the score; None if neither does."""
    parts = list(results.get("group_subtasks", {}).get(name) or ())
    if not parts:
        return {name: 1.0}
    values = [float(row[key]) for part in parts if isinstance((row := rows.get(part, {})).get(key), (int, float))]
    sizes = [document_count(results, part) for part in parts]
    if len(values) < len(parts) or not all(sizes):
        return None
    for sized in (sizes, [1] * len(parts)):
        shares = [size / sum(sized) for size in sized]
        mean = math.fsum(share * value for share, value in zip(shares, values, strict=True))
        if math.isclose(mean, rows[name][key], rel_tol=1e-6, abs_tol=1e-9):
            break
    else:
        return None
    weights: dict[str, float] = {}
    for part, share in zip(parts, shares, strict=True):
        inner = weights_of(results, rows, part, key)
        if inner is None:
            return None
        for task, weight in inner.items():
            weights[task] = weights.get(task, 0.0) + share * weight
    return weights


def document_count(results: Mapping[str, Any], name: str) -> int:
    """The number of documents of a task's or group's score."""
    counts = results.get("n-samples", {})
    return sum(int(counts.get(task, {}).get("effective", 0)) for task in members(results, name))
