"""One queue over all requests of all tasks: what the journal holds is served, the rest is computed and journalled.

The model pulls requests from one iterator, so a finished row's slot is refilled at once, whatever task the next
request belongs to. Long work goes first: the tail, where slots run empty, is then made of short rows. No result
depends on the order (randomness is keyed by the sample).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from dare_bench.engine.answering import note
from dare_bench.engine.codec import failure_record, to_record, to_sample
from dare_bench.engine.environment import environment
from dare_bench.engine.journal import Journal
from dare_bench.engine.meters import peak_memory_mb
from dare_bench.errors import RunError
from dare_bench.protocols import LoadedModel
from dare_bench.runs.schema import Environment
from dare_bench.types import Generation, LoopStats, Request, Sample

_COST_EVERY = 1.0
"""Seconds between two records of what the session has cost so far."""


class Watcher(Protocol):
    """Told what happens, for progress displays. Work is measured in forward passes."""

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None: ...

    def forward(self, rows: int) -> None:
        """So many more row forwards are done, of samples that may be far from their end."""
        ...

    def advance(self, samples: int, work: int, failed: int) -> None: ...

    def close(self) -> None: ...


class Silent:
    """Nobody watches."""

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None:
        return

    def forward(self, rows: int) -> None:
        return

    def advance(self, samples: int, work: int, failed: int) -> None:
        return

    def close(self) -> None:
        return


@dataclass(slots=True)
class FailedRequest:
    """A request without an answer, and the one-line reason."""

    task: str
    doc_id: int | str
    error: str


Prepare = Callable[[Request], Request]
"""Adds the engine's own decoding fields to a request, for the model's eyes; the key stays as it is."""


class RemoteWorkers(Protocol):
    """Answers requests in other processes, into the same journal."""

    def __call__(
        self, prepared: Sequence[Request], work: Mapping[str, int], watcher: Watcher
    ) -> dict[str, FailedRequest]:
        """Answer them all (``work``: forward passes by key); returns those that failed, by key."""
        ...


class Queue:
    """Answers requests for a task source: ``queue.answer`` is its ``Answer``.

    Args:
        model: who computes.
        journal: where samples are kept.
        prepare: adds decoding fields before the model sees a request.
        max_rows: the most rows at a time; None lets the model choose.
        watcher: told about progress.
        watch: given every generated sample as soon as it is there, so that scoring can begin while others are computed.
        session: the number of this session in the run, for the cost records.
        writer: the shard that this queue is, for the cost records; None where the run is not sharded.
        remote: who computes what is missing, in other processes; None computes it here.
        around: the versions and hardware to note beside the answers; None: those of this process.
    """

    def __init__(
        self,
        model: LoadedModel,
        journal: Journal,
        *,
        prepare: Prepare = lambda request: request,
        max_rows: int | None = None,
        watcher: Watcher | None = None,
        watch: Callable[[Sample], None] | None = None,
        session: int = 0,
        writer: str | None = None,
        remote: RemoteWorkers | None = None,
        around: Environment | None = None,
    ) -> None:
        self.around = around
        self.watch, self.writer, self.remote = watch, writer, remote
        self.model, self.journal, self.prepare = model, journal, prepare
        self.max_rows, self.watcher, self.session = max_rows, watcher or Silent(), session
        self.stats = LoopStats(watch=self.watcher.forward)
        self.seconds: dict[str, float] = {"generate": 0.0, "score": 0.0}
        self.computed = 0
        self.failures: dict[str, FailedRequest] = {}
        self._answered: dict[str, None] = {}
        self._last_cost = 0.0
        self._clock = ("generate", time.perf_counter())

    def answer(self, requests: Sequence[Request]) -> list[Sample]:
        """One sample for each request, in the order given.

        Raises:
            ValueError: two requests have one key (a mistake of the task source).
            SaveError: the journal cannot be written.
        """
        counts = Counter(request.key for request in requests)
        if len(counts) < len(requests):
            key, times = counts.most_common(1)[0]
            raise ValueError(f"request key {key!r} occurs {times} times; keys must be unique in a run")
        for request in requests if self.watch is not None else ():
            if request.kind == "generate" and request.key in self.journal:
                self._show(request)
        self.fill(requests)
        self._answered.update(dict.fromkeys(counts))
        return [self._serve(request) for request in requests]

    def _show(self, request: Request) -> None:
        assert self.watch is not None
        self.watch(to_sample(self.journal.sample(request.key), request))

    @property
    def keys(self) -> list[str]:
        """The keys of all requests asked for in this session, whoever answered them."""
        return list(self._answered)

    def _serve(self, request: Request) -> Sample:
        if request.key in self.failures:
            return Sample(request, None, self.failures[request.key].error)
        if request.key not in self.journal:
            raise RunError(f"the model gave no sample for request {request.key}; every request must come back once")
        return to_sample(self.journal.sample(request.key), request)

    def fill(self, requests: Sequence[Request]) -> None:
        """Have all requests in the journal (or among the failures): compute what is missing.

        Raises: what ``answer`` raises, and what the model does.
        """
        missing = [r for r in requests if r.key not in self.journal and r.key not in self.failures]
        prepared = {request.key: self.prepare(request) for request in missing}
        work = {key: max(1, self.model.forwards(request)) for key, request in prepared.items()}
        # What is served costs nothing now; its work only keeps the bar honest about how much of the run is done.
        served = len(requests) - len(missing)
        share = sum(work.values()) * served // max(1, len(missing))
        self.watcher.start(len(requests), served, sum(work.values()) + share, share)
        originals = {request.key: request for request in missing}
        if not missing:
            return
        if self.remote is not None:
            self._fetch(self.remote, prepared, originals, work)
        else:
            self._compute(prepared, originals, work)

    def _fetch(
        self,
        remote: RemoteWorkers,
        prepared: Mapping[str, Request],
        originals: Mapping[str, Request],
        work: Mapping[str, int],
    ) -> None:
        """Have requests answered in other processes."""
        self.failures |= remote(list(prepared.values()), work, self.watcher)
        self.computed += sum(key in self.journal for key in originals)
        for key, request in originals.items() if self.watch is not None else ():
            if request.kind == "generate" and key in self.journal:
                self._show(request)

    def _compute(
        self, prepared: Mapping[str, Request], originals: Mapping[str, Request], work: Mapping[str, int]
    ) -> None:
        mark = note(self.journal, self.model, self.session, self.around or environment())
        try:
            for kind, compute in (("generate", self.model.generate), ("score", self.model.score)):
                todo = longest_first((r for r in prepared.values() if r.kind == kind), work)
                if todo:
                    self._clock = (kind, time.perf_counter())
                    rows = compute(iter(todo), max_rows=self.max_rows, stats=self.stats)
                    self._collect(rows, originals, work, mark)
                    self._tick()
        finally:
            self._record_cost()
            self.journal.sync()

    def _tick(self) -> None:
        """Add the time since the last tick to the kind of request that is being computed."""
        kind, since = self._clock
        now = time.perf_counter()
        self.seconds[kind] += now - since
        self._clock = (kind, now)

    def _collect(
        self, samples: Iterator[Sample], originals: Mapping[str, Request], work: Mapping[str, int], program: str
    ) -> None:
        """Journal samples as they finish; they are counted only once they are durable."""
        waiting: list[tuple[str, bool]] = []
        for sample in samples:
            key = sample.request.key
            request = originals[key]
            if sample.answer is None:
                error = sample.error or "no answer and no reason given"
                self.failures[key] = FailedRequest(request.task, request.doc_id, error)
                self.journal.append(failure_record(request, error))
            else:
                self.journal.append(to_record(request, sample.answer, program))
            waiting.append((key, sample.answer is None))
            if self.watch is not None and isinstance(sample.answer, Generation):
                self.watch(Sample(request, sample.answer))
            now = time.perf_counter()
            if now - self._last_cost > _COST_EVERY:
                self._record_cost()
                self._last_cost = now
            if self.journal.sync_is_due:
                self._count(waiting, work)
        self._count(waiting, work)

    def _count(self, waiting: list[tuple[str, bool]], work: Mapping[str, int]) -> None:
        self.journal.sync()
        failed = sum(failed for _, failed in waiting)
        self.computed += len(waiting) - failed
        self.watcher.advance(len(waiting), sum(work[key] for key, _ in waiting), failed)
        waiting.clear()

    def _record_cost(self) -> None:
        """What this session has cost so far; its last record counts, so a killed session's cost is not lost."""
        self._tick()
        spent = {"seconds": sum(self.seconds.values()), "generate_seconds": self.seconds["generate"]}
        record: dict[str, Any] = {"type": "cost", "session": self.session, **spent, **self.stats.plain()}
        if self.writer is not None:
            record["writer"] = self.writer
        self.journal.append({**record, "peak_memory_mb": round(peak_memory_mb(), 1)})


def group_by_document(requests: Iterable[Request]) -> list[list[Request]]:
    """Requests of one document, which can share what its choices have in common."""
    groups: dict[tuple[str, str, int], list[Request]] = {}
    for request in requests:
        groups.setdefault((request.task, str(request.doc_id), request.repeat), []).append(request)
    return list(groups.values())


def longest_first(requests: Iterable[Request], work: Mapping[str, int]) -> list[Request]:
    """Longest work first; requests of one document stay together."""

    def cost(group: list[Request]) -> tuple[int, int]:
        return max(work[r.key] for r in group), max(size(r) for r in group)

    return [request for group in sorted(group_by_document(requests), key=cost, reverse=True) for request in group]


def size(request: Request) -> int:
    """A cheap measure of how long a row will be: characters of text, or tokens. Only the order hangs on it."""
    prompt, target = request.prompt, request.target
    if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
        length = sum(len(str(turn["content"])) for turn in cast("Sequence[Mapping[str, str]]", prompt))
    else:
        length = len(prompt)
    return length + (len(target) if target is not None else 0)
