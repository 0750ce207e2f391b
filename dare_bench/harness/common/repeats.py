"""Several answers to each prompt (``--repeats n``): every repeat is scored by the harness on its own, and here the
repeats become one result.

The unit of a score stays the document: its value is the mean over its repeats, and standard errors come from these
means, since repeats of one document are no independent samples of the task (clustered by document).
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from dare_bench.harness.common.code_eval import pass_at_k
from dare_bench.protocols import LoadedModel
from dare_bench.types import Request

Row = dict[str, Any]
"""One of lm-eval's result rows (by "metric,filter"), or one of its logged samples."""
RepeatResult = tuple[Mapping[str, Any], Mapping[str, Sequence[Mapping[str, Any]]]]
"""(results, samples) of one repeat, as lm-eval has them, in plain JSON values."""
Groups = Callable[[Mapping[str, Mapping[str, Any]]], Mapping[str, Mapping[str, Any]]]
"""Rows of the groups from the rows of the tasks."""
_RIGHT_OR_WRONG = re.compile(
    r"acc|acc_norm|accuracy|exact_match|math_verify|score|(.*_)?pass@1|prompt[-_]level[-_].*", re.IGNORECASE
)
"""Metrics of which an answer is right or wrong, so that one of k may be right. By name, not by the values that came up:
which scores a run has must not depend on its answers."""


def combine(parts: Sequence[RepeatResult], groups: Groups | None = None) -> tuple[dict[str, Any], dict[str, list[Row]]]:
    """One result from those of all repeats.

    A document's row holds the mean over repeats in each metric's key, and an entry for each repeat in ``resps`` and
    ``filtered_resps`` (and ``_answers``). A metric is the mean over documents; where the harness aggregates otherwise,
    it is the mean over repeats of what the harness reported, without a standard error. Metrics that are right or wrong
    by their name bring pass@k; right is a value of 1. A task that only the first part has was asked once and stays as
    it is; a document that not every part has is left out.

    Args:
        groups: makes the groups' rows anew; without it they are the mean over the parts' own.
    """
    results, samples = dict(parts[0][0]), {task: list(map(dict, rows)) for task, rows in parts[0][1].items()}
    if len(parts) == 1:
        return results, samples
    table = {name: dict(row) for name, row in results["results"].items()}
    better = {name: dict(row) for name, row in results.get("higher_is_better", {}).items()}
    counts = {name: dict(row) for name, row in results.get("n-samples", {}).items()}
    for task in samples:
        repeats = [(found["results"][task], rows[task]) for found, rows in parts if task in rows]
        if len(repeats) > 1:
            joined = _Task(*zip(*repeats, strict=True), better=better.setdefault(task, {}))
            table[task], samples[task] = joined.row, joined.lines
            counts.get(task, {}).update(effective=joined.documents)
    made = groups(table) if groups is not None else _mean_groups(parts)
    table |= {name: dict(row) for name, row in made.items()}
    results |= {"results": table, "higher_is_better": better, "n-samples": counts}
    if "groups" in results:
        results["groups"] = {name: table[name] for name in results["groups"]}
    return results, samples


class _Task:
    """One task's repeats as one: ``row`` of the results, ``lines`` of the samples, number of ``documents``."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], lines: Sequence[Any], *, better: dict[str, Any]) -> None:
        self._rows, self._better = rows, better
        places = [{(line.get("filter", "none"), str(line["doc_id"])): line for line in part} for part in lines]
        common = [place for place in places[0] if all(place in part for part in places[1:])]
        self._parts = lines
        self._repeats = {place: [part[place] for part in places] for place in common}
        self._lines = {place: _joined(repeats) for place, repeats in self._repeats.items()}
        self.row, self.lines = dict(rows[0]), list(self._lines.values())
        self.documents = len({doc for _, doc in common})
        if "sample_len" in self.row:
            self.row["sample_len"] = self.documents
        graded: dict[str, list[str]] = {}
        for key in [key for key in rows[0] if "," in key and not key.partition(",")[0].endswith("_stderr")]:
            metric, _, name = key.partition(",")
            if self._metric(metric, name) and _RIGHT_OR_WRONG.fullmatch(metric):
                graded.setdefault(name, []).append(metric)
        for name, metrics in graded.items():
            for metric in metrics:
                self._pass_at_k(metric, name, alone=len(metrics) == 1)

    def _metric(self, metric: str, name: str) -> bool:
        """Join one metric; is it a mean over documents?"""
        key = f"{metric},{name}"
        reported = [row.get(key) for row in self._rows]
        own = [
            [line[metric] for line in part if line.get("filter", "none") == name and metric in line]
            for part in self._parts
        ]
        here = [(line, self._values(metric, place)) for place, line in self._lines.items() if place[0] == name]
        here = [(line, values) for line, values in here if values]
        if here and all(_is_mean(value, values) for value, values in zip(reported, own, strict=True)):
            means: list[float] = []
            for line, values in here:
                numbers = [float(v) for v in values if _is_number(v)]
                line[metric] = statistics.fmean(numbers) if numbers else None
                means += [line[metric]] if numbers else []
            self._report(metric, name, means)
            return True
        if here and all(_is_ratio(value, values) for value, values in zip(reported, own, strict=True)):
            for line, values in here:
                line[metric] = _elementwise(values)
            parts = [float(v) for line, _ in here for v in line[metric]]
            self.row[key] = statistics.fmean(parts)
        else:
            for line, values in here:
                line[metric] = statistics.fmean(values) if all(map(_is_number, values)) else values
            numbers = [float(value) for value in reported if _is_number(value)]
            self.row[key] = statistics.fmean(numbers) if numbers else reported[0]
        self.row[f"{metric}_stderr,{name}"] = "N/A"
        return False

    def _values(self, metric: str, place: tuple[str, str]) -> list[Any]:
        return [line[metric] for line in self._repeats[place] if metric in line]

    def _report(self, metric: str, name: str, values: Sequence[float]) -> None:
        error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else "N/A"
        self.row |= {f"{metric},{name}": statistics.fmean(values), f"{metric}_stderr,{name}": error}

    def _pass_at_k(self, metric: str, name: str, *, alone: bool) -> None:
        """Add pass@k under the metric's own name, or as plain ``pass@k`` where no other metric could be meant."""
        own = metric == "pass@1"
        if self._better.get(metric) is False:
            return
        for k in sizes(len(self._rows)):
            title = f"pass@{k}" if own or alone else f"{metric}_pass@{k}"
            if f"{title},{name}" in self.row:
                continue  # the task has it from answers of its own, or it is the metric itself
            values = []
            for place, line in self._lines.items():
                found = self._values(metric, place) if place[0] == name else []
                if len(found) >= k:
                    values.append(pass_at_k(len(found), sum(value == 1 for value in found), k))
                    line[title] = values[-1]
                    line["metrics"] = [*line.get("metrics", ()), title]
            if values:
                self._report(title, name, values)
                self._better[title] = True


def sizes(n: int) -> list[int]:
    """The k of pass@k that ``n`` answers are reported for: powers of two up to ``n``, and ``n``. The metric itself is
    pass@1."""
    return sorted({2**power for power in range(1, n.bit_length())} | {n} - {1})


def _joined(repeats: Sequence[Mapping[str, Any]]) -> Row:
    """A document's row: as in the first repeat, with the responses of all and every metric that any of them has."""
    row: Row = {}
    for repeat in reversed(repeats):
        row |= repeat
    row["metrics"] = list(dict.fromkeys(metric for repeat in repeats for metric in repeat.get("metrics", ())))
    if "resps" in row:
        responses = zip(*(repeat["resps"] for repeat in repeats), strict=True)  # by request of the document
        row["resps"] = [[text for texts in found for text in texts] for found in responses]
    for name in ("filtered_resps", "_answers"):
        if all(name in repeat for repeat in repeats):
            row[name] = [entry for repeat in repeats for entry in repeat[name]]
    return row


def _mean_groups(parts: Sequence[RepeatResult]) -> dict[str, Row]:
    """Groups as the mean over the parts of what the harness reported; their standard errors are not known."""
    names = [name for name in parts[0][0].get("group_subtasks", {}) if name not in parts[0][1]]
    made: dict[str, Row] = {}
    for name in names:
        rows = [found["results"][name] for found, _ in parts if name in found["results"]]
        made[name] = dict(rows[0]) if rows else {}
        for key in [key for key in made[name] if "," in key]:
            if key.partition(",")[0].endswith("_stderr"):
                made[name][key] = "N/A"
            elif numbers := [float(row[key]) for row in rows if _is_number(row.get(key))]:
                made[name][key] = statistics.fmean(numbers)
    return made


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _is_mean(reported: Any, values: Sequence[Any]) -> bool:
    """Is the score the mean of the documents' values (None: no value)?"""
    numbers = [value for value in values if value is not None]
    if not numbers or not _is_number(reported) or not all(map(_is_number, numbers)):
        return False
    return math.isclose(statistics.fmean(numbers), reported, rel_tol=1e-6, abs_tol=1e-9)


def _is_ratio(reported: Any, values: Sequence[Any]) -> bool:
    """Is the score the mean over all parts of the documents' values (IFEval's instructions)?"""
    if not all(isinstance(value, (list, tuple)) for value in values):
        return False
    parts = [part for value in values for part in value]
    if not parts or not _is_number(reported) or not all(map(_is_number, parts)):
        return False
    return math.isclose(statistics.fmean(parts), reported, rel_tol=1e-6, abs_tol=1e-9)


def _elementwise(values: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each part over repeats; parts of all repeats, where repeats have different numbers of them."""
    if len({len(value) for value in values}) == 1:
        return [statistics.fmean(parts) for parts in zip(*values, strict=True)]
    return [float(part) for value in values for part in value]


def equal_repeats(model: LoadedModel, requests: Iterable[Request]) -> Iterator[str]:
    """A note for each task whose repeats cannot differ."""
    seen: set[str] = set()
    for request in requests:
        if request.kind == "generate" and request.repeat > 0 and request.task not in seen:
            seen.add(request.task)
            if (request.resolved or model.resolve(request.decoding)).deterministic:
                yield (
                    f"task {request.task!r}: repeats of a document are equal, since its decoding draws no random"
                    " numbers; --gen-kwargs temperature=0.7 (for example) makes them differ"
                )
