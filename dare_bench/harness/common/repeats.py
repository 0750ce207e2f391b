"""Several answers to each prompt (``--repeats n``): the harness scores every repeat separately, and here the repeats
become one result. The unit of a score remains the document, whose value is the mean over its repeats; standard errors
come from these means, since repeats of one document are not independent samples of the task."""

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
_BINARY = re.compile(
    r"acc|acc_norm|accuracy|exact_match|math_verify|score|(.*_)?pass@1|prompt[-_]level[-_].*", re.IGNORECASE
)
"""Metrics by which an answer is right or wrong, so that pass@k is defined. By name, not by the values of a run: which
scores a run has must not depend on its answers."""


def combine(parts: Sequence[RepeatResult], groups: Groups | None = None) -> tuple[dict[str, Any], dict[str, list[Row]]]:
    """One result from those of all repeats; ``groups`` computes the groups' rows.

    A document's row has the mean over repeats of each metric, and the responses of all. A metric that the harness does
    not compute as a mean over documents is the mean over repeats of what it reported, without a standard error. Metrics
    that are binary by their name add pass@k. A task that only the first part has stays unchanged; a document that is
    missing in a part is left out.
    """
    results, samples = dict(parts[0][0]), {task: list(map(dict, rows)) for task, rows in parts[0][1].items()}
    if len(parts) == 1:
        return results, samples
    table = {name: dict(row) for name, row in results["results"].items()}
    better = {name: dict(row) for name, row in results.get("higher_is_better", {}).items()}
    counts = {name: dict(row) for name, row in results.get("n-samples", {}).items()}
    for task in samples:
        repeats = [(part["results"][task], rows[task]) for part, rows in parts if task in rows]
        if len(repeats) > 1:
            joined = _Task(*zip(*repeats, strict=True), better=better.setdefault(task, {}))
            table[task], samples[task] = joined.row, list(joined.lines.values())
            counts.get(task, {}).update(effective=joined.documents)
    if groups is not None:
        table |= {name: dict(row) for name, row in groups(table).items()}
    results |= {"results": table, "higher_is_better": better, "n-samples": counts}
    if "groups" in results:
        results["groups"] = {name: table[name] for name in results["groups"]}
    return results, samples


class _Task:
    """One task's repeats as one: ``row`` of the results, ``lines`` of the samples by (filter, document), number of
    ``documents``."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], lines: Sequence[Any], *, better: dict[str, Any]) -> None:
        self._rows, self._better, self._parts = rows, better, lines
        by_key = [{(line.get("filter", "none"), str(line["doc_id"])): line for line in part} for part in lines]
        common = [key for key in by_key[0] if all(key in part for part in by_key[1:])]
        self._repeats = {key: [part[key] for part in by_key] for key in common}
        self.row, self.lines = dict(rows[0]), {key: _joined(repeats) for key, repeats in self._repeats.items()}
        self.documents = len({doc for _, doc in common})
        if "sample_len" in self.row:
            self.row["sample_len"] = self.documents
        binary: dict[str, list[str]] = {}
        for metric, filter_name in _metrics(rows[0]):
            if self._join(metric, filter_name) and _BINARY.fullmatch(metric):
                binary.setdefault(filter_name, []).append(metric)
        for filter_name, metrics in binary.items():
            for metric in metrics:
                self._pass_at_k(metric, filter_name, is_only=len(metrics) == 1)

    def _join(self, metric: str, filter_name: str) -> bool:
        """Join one metric; is it a mean over documents?"""
        reported = [row.get(f"{metric},{filter_name}") for row in self._rows]
        by_part = [
            [line[metric] for line in part if line.get("filter", "none") == filter_name and metric in line]
            for part in self._parts
        ]
        joined = [(line, values) for line, values in self._values(metric, filter_name) if values]
        if joined and all(map(_is_mean, reported, by_part)):
            for line, values in joined:
                line[metric] = _mean_of_numbers(values)
            self._report(metric, filter_name, [line[metric] for line, _ in joined if line[metric] is not None])
            return True
        ratio = joined and all(map(_is_ratio, reported, by_part))
        for line, values in joined:
            numeric = all(map(_is_number, values))
            line[metric] = statistics.fmean(values) if numeric else _elementwise_mean(values) if ratio else values
        score = _mean_of_numbers(value for line, _ in joined for value in line[metric]) if ratio else None
        score = _mean_of_numbers(reported) if score is None else score
        self.row[f"{metric},{filter_name}"] = reported[0] if score is None else score
        self.row[f"{metric}_stderr,{filter_name}"] = "N/A"
        return False

    def _values(self, metric: str, filter_name: str) -> Iterator[tuple[Row, list[Any]]]:
        """Each document's row with the values of its repeats."""
        for key, line in self.lines.items():
            if key[0] == filter_name:
                yield line, [repeat[metric] for repeat in self._repeats[key] if metric in repeat]

    def _report(self, metric: str, filter_name: str, values: Sequence[float]) -> None:
        score, error = statistics.fmean(values), standard_error(values)
        self.row |= {f"{metric},{filter_name}": score, f"{metric}_stderr,{filter_name}": error}

    def _pass_at_k(self, metric: str, filter_name: str, *, is_only: bool) -> None:
        """Add pass@k under the metric's name, or as plain ``pass@k`` if no other metric could be meant."""
        if self._better.get(metric) is False:
            return
        for k in sizes(len(self._rows)):
            title = f"pass@{k}" if is_only or metric == "pass@1" else f"{metric}_pass@{k}"
            if f"{title},{filter_name}" in self.row:
                continue  # the task has it from its answers, or it is the metric itself
            estimates = []
            for line, values in self._values(metric, filter_name):
                if len(values) >= k:
                    line[title] = pass_at_k(len(values), sum(value == 1 for value in values), k)
                    line["metrics"] = [*line.get("metrics", ()), title]
                    estimates.append(line[title])
            if estimates:
                self._report(title, filter_name, estimates)
                self._better[title] = True


def standard_error(values: Sequence[float]) -> float | str:
    """Of the mean of documents' values; lm-eval's ``N/A`` for fewer than two."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else "N/A"


def sizes(n: int) -> list[int]:
    """The k of pass@k that are reported for ``n`` answers: powers of two up to ``n``, and ``n``. The metric itself is
    pass@1."""
    return sorted({2**power for power in range(1, n.bit_length())} | {n} - {1})


def _metrics(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(metric, filter) of each score in a result row."""
    keys = [key.partition(",") for key in row if "," in key]
    return [(metric, filter_name) for metric, _, filter_name in keys if not metric.endswith("_stderr")]


def _joined(repeats: Sequence[Mapping[str, Any]]) -> Row:
    """A document's row: as in the first repeat, with the responses of all and every metric that any of them has."""
    row: Row = {}
    for repeat in reversed(repeats):
        row |= repeat
    row["metrics"] = list(dict.fromkeys(metric for repeat in repeats for metric in repeat.get("metrics", ())))
    if "resps" in row:
        by_request = zip(*(repeat["resps"] for repeat in repeats), strict=True)
        row["resps"] = [[text for texts in responses for text in texts] for responses in by_request]
    for name in ("filtered_resps", "_answers"):
        if all(name in repeat for repeat in repeats):
            row[name] = [entry for repeat in repeats for entry in repeat[name]]
    if all("redrawn" in repeat for repeat in repeats):
        shares = {metric: [repeat["redrawn"].get(metric) for repeat in repeats] for metric in row["redrawn"]}
        row["redrawn"] = {
            metric: mean for metric, each in shares.items() if (mean := _mean_of_numbers(each)) is not None
        }
    return row


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _mean_of_numbers(values: Iterable[Any]) -> float | None:
    numbers = [float(value) for value in values if _is_number(value)]
    return statistics.fmean(numbers) if numbers else None


def _is_mean(reported: Any, values: Iterable[Any]) -> bool:
    """Is the score the mean of the documents' values (None: no value)?"""
    numbers = [value for value in values if value is not None]
    if not numbers or not _is_number(reported) or not all(map(_is_number, numbers)):
        return False
    return math.isclose(statistics.fmean(numbers), reported, rel_tol=1e-6, abs_tol=1e-9)


def _is_ratio(reported: Any, values: Sequence[Any]) -> bool:
    """Is the score the mean over all elements of the documents' values (IFEval's instructions)?"""
    if not all(isinstance(value, (list, tuple)) for value in values):
        return False
    elements = [element for value in values for element in value]
    return None not in elements and _is_mean(reported, elements)


def _elementwise_mean(values: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each element over repeats; all elements, if repeats have different numbers of them."""
    if len({len(value) for value in values}) == 1:
        return [statistics.fmean(elements) for elements in zip(*values, strict=True)]
    return [float(element) for value in values for element in value]


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
