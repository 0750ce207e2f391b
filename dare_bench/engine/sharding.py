"""Evaluation in several processes: what is missing is dealt out to shards, each with its own model and journal file.

The main process builds requests and scores as ever; in between, an executor's workers answer. They write into the
run's journal, so what they finish is kept whoever dies, and the next session deals out what is then missing. No sample
depends on the number of shards: its randomness is its own, and no row sees another.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine.environment import environment
from dare_bench.engine.journal import Journal
from dare_bench.engine.opening import Opener
from dare_bench.engine.queue import FailedRequest, Queue, Watcher, group_by_document, size
from dare_bench.errors import RunError, UsageError
from dare_bench.executors import executor
from dare_bench.protocols import Job, LoadedModel
from dare_bench.registry import registry
from dare_bench.runs.schema import Environment
from dare_bench.types import Request

_LOOK_EVERY = 0.5
"""Seconds between two looks at what the shards have written."""


@dataclass(frozen=True, slots=True)
class Shard:
    """What a worker is told: its share of the requests, as the model sees them, and whose answers they are."""

    spec: RunSpec
    content: tuple[str, str | None]
    journal: Path
    session: int
    number: int
    requests: tuple[Request, ...]
    around: Environment | None = None


def sharded(spec: RunSpec, opened: Any = None) -> bool:
    """Is the evaluation to be dealt out to workers?

    Raises:
        UsageError: it cannot be: the model is ``opened`` in this process alone, or the executor works here.
        UnknownNameError: no such executor.
    """
    if spec.executor in (None, "local") and spec.devices == 1:
        return False
    if spec.executor == "local":
        raise UsageError(f"devices={spec.devices} needs another executor than 'local': leave it out, or 'ray'")
    registry().get("executor", spec.executor or "devices")
    if opened is not None:
        raise UsageError(
            "a model that is open in this process cannot be sharded: give its folder or name, which workers can open"
        )
    return True


def _content(spec: RunSpec, content: str) -> tuple[str, str | None]:
    """What answers: the content hashes of checkpoint and adapter."""
    return content, ident.adapter_content(spec, content)


class Shards:
    """Answers requests in an executor's workers (``queue.RemoteWorkers``).

    Args:
        spec: names the checkpoint, which every worker opens for itself, and the executor.
        content: the checkpoint's content hash; a worker that finds another one refuses.
        model: the main process's own, which makes room on a GPU while the workers are there.
        journal: the run's, open in this process.
        session: the number of this session in the run.
    """

    def __init__(self, spec: RunSpec, content: str, model: LoadedModel, journal: Journal, session: int) -> None:
        self.spec, self.content, self.model = spec, _content(spec, content), model
        self.journal, self.session = journal, session

    def __call__(
        self, prepared: Sequence[Request], work: Mapping[str, int], watcher: Watcher
    ) -> dict[str, FailedRequest]:
        """Answer all requests; returns the failed ones.

        Raises:
            UsageError: the executor is not there, or has fewer devices than were asked for.
            DareError: what a shard raised, once the others have ended; what was finished is kept.
        """
        spec, journal = self.spec, self.journal
        name = spec.executor or "devices"
        device = "cpu" if self.model.spec.device == "cpu" else spec.device
        made = executor(name, workers=spec.devices, device=device, address=spec.ray_address)
        shares = deal(prepared, work, made.workers)
        told = (spec, self.content, journal.folder, self.session)
        around = environment()
        jobs = [
            Job(f"shard {i} of {len(shares)}", Shard(*told, i, tuple(share), around))
            for i, share in enumerate(shares, 1)
        ]
        failures: dict[str, FailedRequest] = {}
        errors: list[Exception] = []
        begin = time.perf_counter()
        journal.sync()
        with (
            _aside(self.model),
            _follow(journal, work, watcher),
            contextlib.closing(made.run(answer, jobs)) as running,
        ):
            for done in running:
                failures |= done.value or {}
                errors += [done.error] if done.error is not None else []
        self._note(name, len(shares), time.perf_counter() - begin)
        if errors:
            raise errors[0]
        return failures

    def _note(self, name: str, shards: int, seconds: float) -> None:
        """By the clock: the cost block adds up the seconds of all devices."""
        event = {"what": f"answered in {shards} shards side by side", "executor": name, "session": self.session}
        date = datetime.now().astimezone().isoformat()
        self.journal.append({"type": "event", **event, "wall_seconds": round(seconds, 3), "date": date})


def deal(requests: Sequence[Request], work: Mapping[str, int], shards: int) -> list[list[Request]]:
    """At most ``shards`` shares of about equal work; requests of one document stay together, no share is empty.

    Documents go to the lightest share so far, the heaviest first (the LPT rule: at most 4/3 of the best balance).
    """

    def cost(group: Sequence[Request]) -> tuple[int, int]:
        return sum(work[r.key] for r in group), sum(size(r) for r in group)

    groups = sorted(group_by_document(requests), key=cost, reverse=True)
    shares: list[list[Request]] = [[] for _ in range(min(shards, len(groups)))]
    loads = [(0, 0) for _ in shares]
    for group in groups:
        lightest = min(range(len(shares)), key=loads.__getitem__)
        shares[lightest] += group
        (passes, length), (more_passes, more_length) = loads[lightest], cost(group)
        loads[lightest] = (passes + more_passes, length + more_length)
    return shares


def answer(shard: Shard) -> dict[str, FailedRequest]:
    """In a worker: answer a shard into a journal file of its own; returns the failed requests.

    Raises:
        RunError: the checkpoint is no longer the one that the run is of. And what opening and answering raise.
    """
    spec = shard.spec
    opener = Opener()
    if _content(spec, opener.content(spec)) != shard.content:
        raise RunError(f"{spec.model} changed while its evaluation began; run the command again: it is another run now")
    # A shard that is begun again elsewhere must not meet the file of a writer that may still be dying.
    writer = f"shard-{shard.session}-{shard.number}-{socket.gethostname()}-{os.getpid()}"
    with Journal(shard.journal, writer) as journal:
        queue = Queue(
            opener.loaded(spec), journal, max_rows=spec.max_rows, session=shard.session, writer=writer,
            around=shard.around,
        )  # fmt: skip
        queue.fill(shard.requests)
        return queue.failures


@contextlib.contextmanager
def _follow(journal: Journal, work: Mapping[str, int], watcher: Watcher) -> Iterator[None]:
    """Meanwhile take in what the shards write, and tell the display; at the end, have it all and durable."""
    ended = threading.Event()
    seen: set[str] = set()

    def count(records: Sequence[tuple[str, str]]) -> None:
        for kind, key in records:
            if key in work and key not in seen:
                seen.add(key)
                watcher.advance(1, work[key], int(kind == "failure"))

    def look() -> None:
        while not ended.wait(_LOOK_EVERY):
            count(journal.reread())
            watcher.forward(0)  # the workers tell of whole samples only: the display still shows that they work

    thread = threading.Thread(target=look, name="shards", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        count(journal.adopt())


@contextlib.contextmanager
def _aside(model: LoadedModel) -> Iterator[None]:
    """Keep the main process's weights off the GPU, which a worker needs whole."""
    network, device = model.network, model.spec.device
    if network is None or not device.startswith("cuda"):
        yield
        return
    import torch

    network.to("cpu")
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        network.to(device)
