"""What an evaluation would do and how long it would take (``--dry-run``); only the cache of file hashes is written."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench.engine import identity as ident
from dare_bench.engine.evaluate import resolve_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.opener import Opener
from dare_bench.engine.queue import size
from dare_bench.engine.rundir import candidates
from dare_bench.engine.session import request_preparer
from dare_bench.protocols import LoadedModel
from dare_bench.types import LoopStats, Request

TIMING_LIMIT = 20.0
"""Seconds after which timing stops, once the current forward pass ends."""


@dataclass(frozen=True)
class RunTiming:
    """Estimated ``seconds`` of the run (None: not timed), from ``samples`` finished within ``forwards`` passes in
    ``took`` seconds."""

    seconds: float | None = None
    samples: int = 0
    forwards: int = 0
    took: float = 0.0


@dataclass(frozen=True)
class Preview:
    """``forwards`` is an upper bound: rows may stop early."""

    run_id: str
    run_path: Path
    exists: bool
    spec: dict[str, Any]
    model: dict[str, Any]
    decoding: dict[str, dict[str, Any]]
    likelihood: dict[str, dict[str, Any]]
    requests: dict[str, int]
    forwards: int
    timing: RunTiming
    prompt: str

    def plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "run_path": str(self.run_path)}


def preview(model: Any = None, *, on_ready: Callable[[Preview], None] = lambda _: None, **fields: Any) -> Preview:
    """See what :func:`~dare_bench.engine.evaluate.evaluate` would do with the same arguments.

    Args:
        on_ready: called with the preview without its timing, before samples are timed.

    Raises the errors that ``evaluate`` raises before it computes.
    """
    spec, opened = resolve_spec(None, model, fields)
    source_class = checked_harness(spec)
    opener = Opener(opened)
    content = opener.content(spec)
    opened = opener.loaded(spec)
    prepare = request_preparer(opened, spec)
    requests = [prepare(request) for request in source_class(spec, opened).requests()]
    decoding, likelihood = ident.settings_by_task(opened, requests)
    run_id = ident.run_id(spec, ident.identity(spec, opened, content, decoding, likelihood))
    folders = candidates(Path(spec.output_path), run_id)
    forwards = [opened.forwards(request) for request in requests]
    untimed = Preview(
        run_id=run_id,
        run_path=folders[-1][1] if folders else Path(spec.output_path) / run_id,
        exists=bool(folders),
        spec=spec.model_dump(mode="json"),
        model={**dataclasses.asdict(opened.spec), "content_hash": content},
        decoding=decoding,
        likelihood=likelihood,
        requests=dict(Counter(request.task for request in requests)),
        forwards=sum(forwards),
        timing=RunTiming(),
        prompt=rendered(opened, requests[0]) if requests else "",
    )
    on_ready(untimed)
    return dataclasses.replace(untimed, timing=timed(opened, requests, forwards, spec.max_rows))


def most_forwards(model: LoadedModel, fields: Mapping[str, Any]) -> int:
    """The forward passes that an evaluation by these fields takes at most, counted per row; ``model`` needs no weights.
    Raises the errors that ``evaluate`` raises before it computes."""
    spec, _ = resolve_spec(None, None, fields)
    prepare = request_preparer(model, spec)
    return sum(model.forwards(prepare(request)) for request in checked_harness(spec)(spec, model).requests())


class _TimeUp(Exception):
    """The timing reached its limit."""


def timed(model: LoadedModel, requests: Sequence[Request], forwards: Sequence[int], max_rows: int | None) -> RunTiming:
    """Time a short, a medium and a long request for at most :data:`TIMING_LIMIT` seconds, and extrapolate by forward
    passes. Rows that stop early make the run shorter, longer prompts make it longer."""
    by_cost = sorted(range(len(requests)), key=lambda i: (forwards[i], size(requests[i])))
    if not by_cost:
        return RunTiming()
    picks = {requests[i].key: i for i in {by_cost[round(share * (len(by_cost) - 1))] for share in (0.0, 0.5, 1.0)}}
    begin = time.perf_counter()

    def watch(_: int) -> None:
        if time.perf_counter() - begin > TIMING_LIMIT:
            raise _TimeUp

    stats, samples, passes, bound = LoopStats(watch=watch), 0, 0, 0
    with contextlib.suppress(_TimeUp):
        for kind, compute in (("generate", model.generate), ("score", model.score)):
            chosen = [requests[i] for i in picks.values() if requests[i].kind == kind]
            for sample in compute(iter(chosen), max_rows=max_rows, stats=stats) if chosen else ():
                bound += forwards[picks[sample.request.key]]
                passes += sample.answer.nfe if sample.answer is not None else 0
                samples += sample.answer is not None
    took = time.perf_counter() - begin
    # Rows that stop early take fewer passes than their bound: the ratio of finished samples is applied to the others.
    # Samples that the limit interrupted are assumed to need their bound.
    done = bound + max(0, stats.row_forwards - passes)
    seconds = took * sum(forwards) / done if done and stats.row_forwards else None
    return RunTiming(seconds, samples, stats.row_forwards, took)


def rendered(model: LoadedModel, request: Request) -> str:
    """The prompt as the model reads it, as text; token ids without a tokenizer."""
    if isinstance(request.prompt, str):
        return request.prompt
    if model.capabilities.messages:
        return json.dumps(list(request.prompt), ensure_ascii=False, default=str)
    tokens = model.encode(request.prompt)
    decode = getattr(model.tokenizer, "decode", None)
    return str(decode(tokens)) if decode is not None else " ".join(map(str, tokens))
