"""Evaluations that stop when their scores are precise (``--until-halfwidth``).

The documents of a task are answered in a random order, fixed by its name and the run's seed, in rounds that end at
fixed numbers of documents. After a round, a task whose intervals are narrow enough is done; they hold whenever one
stops (:func:`~dare_bench.analysis.intervals.anytime`). Neither batch size nor workers or interruptions change which
documents a run has.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dare_bench import seeds
from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.config import RunSpec
from dare_bench.errors import UsageError
from dare_bench.harness.common.scope import Scope
from dare_bench.log import log
from dare_bench.protocols import Answer, HarnessResult, TaskSource
from dare_bench.runs.schema import CI, Block
from dare_bench.types import Request

ROUND = 50
"""Documents of a round; one that begins after many documents has a tenth of their number."""


def round_ends(most: int) -> Iterator[int]:
    """The numbers of documents after which the intervals of a task are looked at."""
    count = 0
    while count < most:
        count = min(most, count + max(ROUND, count // 10 // ROUND * ROUND))
        yield count


def is_settled(block: Block, spec: RunSpec) -> bool:
    """Has a finished run the half-width that these settings ask for, or their limit of documents?"""
    return all(
        _is_narrow(block.ci.get(name, {}), spec)
        or (task.n_total is not None and task.n_docs >= _most(spec.limit, task.n_total))
        for name, task in block.tasks.items()
    )


def refuse_unstoppable(source: TaskSource, requests: Iterable[Request]) -> None:
    """Raise UsageError for tasks whose evaluation cannot stop early."""
    for request in requests:
        if request.kind != "generate":
            raise UsageError(
                f"--until-halfwidth is for tasks that generate answers, and {request.task!r} compares log-likelihoods;"
                " leave it out, and see --estimator adaptive"
            )
    source.narrow({})


class StoppingRun:
    """The rounds of a run whose tasks have these requests. ``requests``: of all documents; ``done``: the documents of
    the run as it was finished before, which it keeps."""

    def __init__(self, spec: RunSpec, requests: Sequence[Request], done: Scope | None) -> None:
        self.spec, self.requests = spec, requests
        documents: dict[str, dict[Any, None]] = {}
        for request in requests:
            documents.setdefault(request.task, {})[request.doc_id] = None
        self.orders = {task: _random_order(task, ids, spec.sampling_seed) for task, ids in documents.items()}
        self.kept = {task: len(ids) for task, ids in (done.samples or {} if done else {}).items()}
        self.ends = {
            task: list(round_ends(max(_most(spec.limit, len(order)), self.kept.get(task, 0))))
            for task, order in self.orders.items()
        }
        self.chosen: Mapping[str, Sequence[Any]] = {}

    @property
    def scope(self) -> Scope:
        """The documents of the last round and those before."""
        return Scope.of(None, self.chosen)

    def run(self, source: TaskSource, answer: Answer, answered: Container[str]) -> HarnessResult:
        """Answer and score round after round; the result of all documents of the last one. ``answered``: keys of
        requests with an answer of an earlier session. Raises UsageError: a task has no score from 0 to 1."""
        at = self._first(answered)
        while True:
            self.chosen = {task: order[: self.ends[task][at[task]]] for task, order in self.orders.items()}
            source.narrow(self.chosen)
            harness = source.run(answer)
            intervals = confidence_intervals(harness.results, harness.samples, stops=True)
            for task in self.orders:
                if harness.samples.get(task) and task not in intervals:
                    raise UsageError(f"--until-halfwidth: task {task!r} has no score from 0 to 1; leave it out")
            wide = [task for task in at if not _is_narrow(intervals.get(task, {}), self.spec)]
            further = [task for task in wide if at[task] + 1 < len(self.ends[task])]
            if not further:
                return harness
            for task in further:
                width = 100 * _halfwidth(intervals.get(task, {}))
                log.info("%s: ±%.1f points after %d documents", task, width, len(self.chosen[task]))
                at[task] += 1

    def _first(self, answered: Container[str]) -> dict[str, int]:
        """The round to begin with, by task: the last that an earlier session has answered whole. No earlier one ended
        the task, as documents behind it were answered."""
        places = {(task, doc): place for task, order in self.orders.items() for place, doc in enumerate(order, start=1)}
        held = dict.fromkeys(self.orders, 0)
        for request in self.requests:
            if request.key in answered:
                held[request.task] = max(held[request.task], places[request.task, request.doc_id])
        return {
            task: max(0, sum(end <= held[task] for end in ends) - 1, sum(end < self.kept.get(task, 0) for end in ends))
            for task, ends in self.ends.items()
        }


def _random_order(task: str, documents: Iterable[Any], seed: int) -> list[Any]:
    return sorted(documents, key=lambda document: seeds.key("order", seed, task, document))


def _most(limit: int | float | None, total: int) -> int:
    """The most documents of a task of ``total``."""
    first = Scope(limit).first(total)
    return total if first is None else first


def _is_narrow(intervals: Mapping[str, CI], spec: RunSpec) -> bool:
    return 100 * _halfwidth(intervals) <= (spec.until_halfwidth or 0.0)


def _halfwidth(intervals: Mapping[str, CI]) -> float:
    """Of the widest of a task's intervals; infinite without one."""
    widths = [(ci.hi - ci.lo) / 2 for ci in intervals.values() if ci.lo is not None and ci.hi is not None]
    return max(widths, default=math.inf)
