"""Evaluation in several processes: workers, each with a model and a journal file, answer the missing requests.

The main process builds requests and scores answers; in between, an executor's workers take the requests in pieces and
write into the run's journal, so finished samples survive the death of any process. No sample depends on the number of
workers or on which one answers it.
"""

from __future__ import annotations

import contextlib
import math
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
from dare_bench.engine.environment import current_environment
from dare_bench.engine.journal import Journal
from dare_bench.engine.opener import Opener
from dare_bench.engine.pieces import Pieces, cut, offered
from dare_bench.engine.progress import Progress
from dare_bench.engine.queue import Queue, RemoteWorkers
from dare_bench.errors import RunError, UsageError
from dare_bench.executors import executor
from dare_bench.loading import is_remote
from dare_bench.protocols import Job, LoadedModel
from dare_bench.registry import registry
from dare_bench.runs.schema import Environment
from dare_bench.types import Request

_POLL_EVERY = 0.5
"""Seconds between two reads of what the shards have written."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One worker of a session: the folder of the pieces that it takes, and the run that they belong to."""

    spec: RunSpec
    content: tuple[str, str | None]
    """The content hashes of checkpoint and adapter."""
    journal: Path
    session: int
    number: int
    pieces: Path
    """Requests as the model sees them (:mod:`dare_bench.engine.pieces`)."""
    rows: int
    """The worker's share of the generations; it has at most so many open at a time, so that all workers have some."""
    environment: Environment | None = None


def uses_workers(spec: RunSpec) -> bool:
    """Is the evaluation divided among worker processes?"""
    return spec.executor not in (None, "local") or spec.devices != 1


def check_workers(spec: RunSpec, opened: Any = None) -> None:
    """Refuse to divide an evaluation among workers that cannot be divided. Raises UsageError: the model is ``opened``
    in this process, on a server or on all GPUs, or the executor runs in this process; UnknownNameError: no such
    executor."""
    if not uses_workers(spec):
        return
    if spec.executor == "local":
        raise UsageError(f"devices={spec.devices} needs an executor other than 'local': omit executor, or give 'ray'")
    registry().get("executor", spec.executor or "devices")
    if is_remote(spec.engine):
        raise UsageError(
            f"--devices and --executor divide work among processes here; a server of engine {spec.engine} divides its"
            " own: leave them out; --max-rows is the number of requests at a time"
        )
    if "auto" in (spec.device, spec.model_args.get("device")):
        raise UsageError(
            "--device auto divides one model among all GPUs, --devices and --executor have one on each; give one or the"
            " other"
        )
    if opened is not None:
        raise UsageError(
            "a model that is open in this process cannot be sharded: give its folder or name, which workers can open"
        )


def remote_workers(spec: RunSpec, content: str, model: LoadedModel, journal: Journal, session: int) -> RemoteWorkers:
    """Answers requests in an executor's workers, each of which opens the checkpoint of ``spec`` for itself and refuses
    if its hash is not ``content``. ``model``: the main process's, moved off the GPU while the workers run."""
    contents = content, ident.adapter_content(spec, content)

    def answer_all(prepared: Sequence[Request], work: Mapping[str, int], progress: Progress) -> dict[str, str]:
        """Answer all requests; returns the errors of failed ones by key. Raises UsageError: the executor is not
        available, or has fewer devices than requested; DareError: the first error of a shard, once the others have
        ended; finished samples are kept."""
        name = spec.executor or "devices"
        device = "cpu" if model.spec.device == "cpu" else spec.device
        workers = executor(name, workers=spec.devices, device=device, address=spec.ray_address)
        pieces = cut(prepared, work, workers.workers)
        shards = min(workers.workers, len(pieces))
        rows = math.ceil(sum(request.kind == "generate" for request in prepared) / shards)
        environment = current_environment()
        failures: dict[str, str] = {}
        errors: list[Exception] = []
        begin = time.perf_counter()
        journal.sync()
        with _off_gpu(model), _follow(journal, work, progress), offered(pieces, journal.folder) as folder:
            jobs = [
                Job(
                    f"shard {i} of {shards}",
                    Shard(spec, contents, journal.folder, session, i, folder, rows, environment),
                )
                for i in range(1, shards + 1)
            ]
            with contextlib.closing(workers.run(answer, jobs)) as running:
                for done in running:
                    failures |= done.value or {}
                    errors += [done.error] if done.error is not None else []
        event = {"what": f"answered in {shards} shards side by side", "executor": name, "session": session}
        seconds = round(time.perf_counter() - begin, 3)  # wall time: the cost block adds up the seconds of all devices
        date = datetime.now().astimezone().isoformat()
        journal.append({"type": "event", **event, "wall_seconds": seconds, "date": date})
        if errors:
            raise errors[0]
        return failures

    return answer_all


def answer(shard: Shard) -> dict[str, str]:
    """In a worker: answer pieces into this worker's journal file until none are left; returns the errors of failed
    requests by key. Raises RunError: the checkpoint has changed since the run began; and what opening and answering
    raise."""
    spec = shard.spec
    pieces = Pieces(shard.pieces, shard.number)
    if not pieces.any():  # others have taken all while this worker waited for its device
        return {}
    opener = Opener()
    content = opener.content(spec)
    if (content, ident.adapter_content(spec, content)) != shard.content:
        raise RunError(
            f"{spec.model} changed while its evaluation began; run the command again, which starts a new run"
        )
    # A shard that is restarted elsewhere must not share a file with a writer that may still be exiting.
    writer = f"shard-{shard.session}-{shard.number}-{socket.gethostname()}-{os.getpid()}"
    with Journal(shard.journal, writer) as journal:
        queue = Queue(
            opener.loaded(spec), journal, max_rows=spec.max_rows, session=shard.session, writer=writer,
            environment=shard.environment,
        )  # fmt: skip
        queue.drain(pieces, shard.rows)
        return queue.failures


@contextlib.contextmanager
def _follow(journal: Journal, work: Mapping[str, int], progress: Progress) -> Iterator[None]:
    """Read what the shards write and show progress; at the end, all of it is read and durable."""
    ended = threading.Event()
    seen: set[str] = set()

    def count(records: Sequence[tuple[str, str]]) -> None:
        for kind, key in records:
            if key in work and key not in seen:
                seen.add(key)
                progress.advance(1, work[key], int(kind == "failure"))

    def poll() -> None:
        while not ended.wait(_POLL_EVERY):
            count(journal.reread())
            progress.forward(0)  # workers report whole samples only: refresh the display between them

    thread = threading.Thread(target=poll, name="shards", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        count(journal.adopt())


@contextlib.contextmanager
def _off_gpu(model: LoadedModel) -> Iterator[None]:
    """Keep the main process's weights off the GPU, whose memory a worker needs."""
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
