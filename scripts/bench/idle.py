"""How long the workers of a sharded evaluation wait for the last one, when answers take very different times.

    python scripts/bench/idle.py [--executor ray] [--workers 8] [--documents 1319] [--seconds 20]

Workers take pieces of requests as those of an evaluation do, and sleep instead of answering (each --seconds, on
average), so any number of them runs on two cores. Beside it, the same documents dealt once in equal shares. The idle
share is the time that workers wait after their last document, of the time from their first document to the end of all.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from timing import command_line

from dare_bench.engine.pieces import Pieces, cut, offered
from dare_bench.executors import executor
from dare_bench.protocols import Job
from dare_bench.types import Request


def times(kind: str, count: int) -> list[float]:
    """How long answers take: up to 64 times as long as the shortest, and nobody knows before."""
    rng = random.Random(0)
    if kind == "one in 20 takes 64 times as long":
        return [64.0 if rng.random() < 0.05 else 1.0 for _ in range(count)]
    return [min(64.0, rng.lognormvariate(1.0, 1.2)) for _ in range(count)]


def work(payload: Any) -> tuple[float, float]:
    """In a worker: when it began and when it had nothing left."""
    source, seconds = payload
    pieces: Iterable[list[int]] = [source]
    if not isinstance(source, list):
        pieces = ([int(request.doc_id) for request in piece] for piece in Pieces(*source))
    begin = time.time()
    for piece in pieces:
        for document in piece:
            time.sleep(seconds[document])
    return begin, time.time()


def measure(name: str, workers: int, payloads: list[Any]) -> str:
    """Run one payload on each worker."""
    jobs = [Job(f"worker {i}", payload) for i, payload in enumerate(payloads)]
    with contextlib.closing(executor(name, workers=workers, device="cpu").run(work, jobs)) as running:
        spans = [done.value for done in running if done.error is None]
    if len(spans) < workers:
        raise SystemExit(f"error: {workers - len(spans)} of {workers} workers failed")
    end = max(last for _, last in spans)
    idle = sum(end - last for _, last in spans) / sum(end - begin for begin, _ in spans)
    return f"idle {idle:.1%}, {end - min(begin for begin, _ in spans):.1f} s"


def main() -> None:
    args = command_line(__doc__, executor="ray", workers=8, documents=1319, seconds=20.0)
    requests = [Request(str(i), "generate", "", task="sleep", doc_id=i) for i in range(args.documents)]
    pieces = cut(requests, dict.fromkeys((request.key for request in requests), 1), args.workers)
    print(f"{args.documents} documents in {len(pieces)} pieces, {args.workers} workers, {args.executor}")
    for kind in ("lognormal", "one in 20 takes 64 times as long"):
        drawn = times(kind, args.documents)
        seconds = [value * args.seconds * args.workers / sum(drawn) for value in drawn]
        with tempfile.TemporaryDirectory() as journal, offered(pieces, Path(journal)) as folder:
            taken = [((folder, worker), seconds) for worker in range(args.workers)]
            print(f"{kind}: in pieces {measure(args.executor, args.workers, taken)}", flush=True)
        dealt = [(list(range(args.documents))[worker :: args.workers], seconds) for worker in range(args.workers)]
        print(f"{kind}: dealt once {measure(args.executor, args.workers, dealt)}", flush=True)


if __name__ == "__main__":
    main()
