"""One queue over all requests of all tasks: answers in the journal are reused, the rest is computed and journaled.

The model pulls requests from one iterator, so a finished row's slot is refilled at once. The longest requests go first,
so that short rows fill the end. No result depends on the order: randomness is keyed by the sample.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, groupby
from typing import Any, cast

from dare_bench.engine.codec import failure_record, to_record, to_sample
from dare_bench.engine.environment import current_environment, record_program
from dare_bench.engine.journal import Journal
from dare_bench.engine.meters import peak_memory_mb
from dare_bench.engine.progress import Progress
from dare_bench.errors import RunError
from dare_bench.protocols import LoadedModel
from dare_bench.runs.schema import Environment
from dare_bench.types import Generation, LoopStats, Request, Sample

_COST_EVERY = 1.0
"""Seconds between two records of what the session has cost so far."""

Prepare = Callable[[Request], Request]
"""Adds the engine's decoding fields to a request, as the model sees it; the key stays as it is."""

RemoteWorkers = Callable[[Sequence[Request], Mapping[str, int], Progress], dict[str, str]]
"""Answers prepared requests in other processes, into the same journal, given the forward passes of each key; returns
the errors of failed requests by key."""


_Batch = tuple[str, int | None, Iterator[Request]]
"""Requests of one kind, and the maximum number of rows at a time (None: the model chooses)."""


@dataclass
class Queue:
    """Answers requests for a task source: ``queue.answer`` is its ``Answer``."""

    model: LoadedModel
    journal: Journal
    _: KW_ONLY
    prepare: Prepare = lambda request: request
    """Adds decoding fields before the model sees a request."""
    max_rows: int | None = None
    """Maximum number of rows at a time; None lets the model choose."""
    progress: Progress = field(default_factory=Progress)
    on_sample: Callable[[Sample], None] = lambda sample: None
    """Called with every generated sample as soon as it exists, so that scoring can begin early."""
    session: int = 0
    writer: str | None = None
    """The number of this session, and the name of this shard if there are several, for cost records."""
    remote: RemoteWorkers | None = None
    """Computes missing answers in other processes; None computes them here."""
    environment: Environment | None = None
    """The versions and hardware to record with the answers; None: those of this process."""

    def __post_init__(self) -> None:
        self.stats = LoopStats(watch=self.progress.forward)
        self.seconds: dict[str, float] = {"generate": 0.0, "score": 0.0}
        self.failures: dict[str, str] = {}
        """Errors of failed requests, by key."""
        self._last_cost = 0.0
        self._clock = ("generate", time.perf_counter())

    def answer(self, requests: Sequence[Request]) -> list[Sample]:
        """One sample for each request, in the order given. Raises ValueError: two requests have one key (a mistake of
        the task source); SaveError: the journal cannot be written."""
        counts = Counter(request.key for request in requests)
        if len(counts) < len(requests):
            key, times = counts.most_common(1)[0]
            raise ValueError(f"request key {key!r} occurs {times} times; keys must be unique in a run")
        self._report_answered(requests)
        self.fill(requests)
        return [self._sample(request) for request in requests]

    def _report_answered(self, requests: Iterable[Request]) -> None:
        """Pass on the generated samples that the journal has."""
        for request in requests:
            if request.kind == "generate" and request.key in self.journal:
                self.on_sample(self._sample(request))

    def _sample(self, request: Request) -> Sample:
        if request.key in self.failures:
            return Sample(request, None, self.failures[request.key])
        if request.key not in self.journal:
            raise RunError(f"the model gave no sample for request {request.key}; every request must come back once")
        return to_sample(self.journal.sample(request.key), request)

    def fill(self, requests: Sequence[Request]) -> None:
        """Compute the requests that are neither in the journal nor among the failures. Raises what ``answer`` raises,
        and what the model does."""
        missing = {r.key: r for r in self._missing(requests)}
        prepared = [self.prepare(request) for request in missing.values()]
        work = {request.key: max(1, self.model.forwards(request)) for request in prepared}
        # Reused answers cost nothing now; their work only lets the bar show how much of the run is done.
        served = len(requests) - len(missing)
        served_work = sum(work.values()) * served // max(1, len(missing))
        self.progress.start(len(requests), served, sum(work.values()) + served_work, served_work)
        if not missing:
            return
        if self.remote is None:
            by_kind = {kind: [r for r in prepared if r.kind == kind] for kind in ("generate", "score")}
            self._compute(
                [(kind, self.max_rows, iter(longest_first(some, work))) for kind, some in by_kind.items() if some],
                missing,
                work,
            )
        else:
            self.failures |= self.remote(prepared, work, self.progress)
            self._report_answered(missing.values())

    def _missing(self, requests: Sequence[Request]) -> list[Request]:
        """The requests without an answer, and the others of their documents where these are answered together."""
        missing = {r.key: r for r in requests if r.key not in self.journal and r.key not in self.failures}
        together = {r.document for r in missing.values() if r.is_adaptive}
        return [r for r in requests if r.key in missing or (r.is_adaptive and r.document in together)]

    def drain(self, pieces: Iterable[Sequence[Request]], share: int) -> None:
        """Compute prepared requests that come in pieces, each of one kind, which are pulled when the model has room.

        Args:
            share: maximum number of rows to generate at a time, if it is less than what the model would take.

        Raises what the model does.
        """
        taken: dict[str, Request] = {}
        rows = min(self.max_rows or self.model.default_rows, share)

        def missing(piece: Sequence[Request]) -> Iterator[Request]:
            for request in self._missing(piece):
                taken[request.key] = request
                yield request

        def batches() -> Iterator[_Batch]:
            for kind, group in groupby(pieces, key=lambda piece: piece[0].kind):
                if kind == "generate":
                    yield kind, rows, chain.from_iterable(map(missing, group))
                else:  # scoring pulls many requests before it begins with the first
                    yield from ((kind, self.max_rows, missing(piece)) for piece in group)

        self.progress.start(0, 0, 0, 0)  # the main process shows how far it is
        self._compute(batches(), taken, Counter())

    def _compute(
        self,
        batches: Iterable[_Batch],
        originals: Mapping[str, Request],
        work: Mapping[str, int],
    ) -> None:
        """Answer batches of requests, each of one kind, and journal the answers."""
        environment = self.environment or current_environment()
        program = record_program(self.journal, self.model, self.session, environment)
        try:
            for kind, rows, requests in batches:
                self._clock = (kind, time.perf_counter())
                compute = self.model.generate if kind == "generate" else self.model.score
                self._collect(compute(requests, max_rows=rows, stats=self.stats), originals, work, program)
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
        unsynced: list[str] = []
        for sample in samples:
            key = sample.request.key
            request = originals[key]
            if sample.answer is None:
                self.failures[key] = sample.error or "no answer and no reason given"
                self.journal.append(failure_record(request, self.failures[key]))
            else:
                self.journal.append(to_record(request, sample.answer, program))
            unsynced.append(key)
            if isinstance(sample.answer, Generation):
                self.on_sample(Sample(request, sample.answer))
            now = time.perf_counter()
            if now - self._last_cost > _COST_EVERY:
                self._record_cost()
                self._last_cost = now
            if self.journal.sync_is_due:
                self._count(unsynced, work)
        self._count(unsynced, work)

    def _count(self, keys: list[str], work: Mapping[str, int]) -> None:
        self.journal.sync()
        self.progress.advance(len(keys), sum(work[key] for key in keys), sum(key in self.failures for key in keys))
        keys.clear()

    def _record_cost(self) -> None:
        """What this session has cost so far; its last record counts, so a killed session's cost is not lost."""
        self._tick()
        spent = {"seconds": sum(self.seconds.values()), "generate_seconds": self.seconds["generate"]}
        record: dict[str, Any] = {"type": "cost", "session": self.session, **spent, **self.stats.plain()}
        if self.writer is not None:
            record["writer"] = self.writer
        self.journal.append({**record, "peak_memory_mb": round(peak_memory_mb(), 1)})


def group_by_document(requests: Iterable[Request]) -> list[list[Request]]:
    """Requests grouped by document, whose choices can share their common prefix."""
    groups: dict[tuple[str, str, int], list[Request]] = {}
    for request in requests:
        groups.setdefault(request.document, []).append(request)
    return list(groups.values())


def longest_first(requests: Iterable[Request], work: Mapping[str, int]) -> list[Request]:
    """Longest work first; requests of one document stay together."""

    def cost(group: list[Request]) -> tuple[int, int]:
        return max(work[r.key] for r in group), max(size(r) for r in group)

    return [request for group in sorted(group_by_document(requests), key=cost, reverse=True) for request in group]


def size(request: Request) -> int:
    """A cheap estimate of a row's length, in characters or tokens; only the order depends on it."""
    prompt, target = request.prompt, request.target
    if not isinstance(prompt, str) and len(prompt) and isinstance(prompt[0], Mapping):
        length = sum(len(str(turn["content"])) for turn in cast("Sequence[Mapping[str, str]]", prompt))
    else:
        length = len(prompt)
    return length + (len(target) if target is not None else 0)
