"""What an evaluation would do and take (``--dry-run``): nothing is written but the memory of file hashes."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.engine import identity as ident
from dare_bench.engine.evaluate import preparer, settled
from dare_bench.engine.hints import check
from dare_bench.engine.opening import Opener
from dare_bench.engine.queue import size
from dare_bench.engine.rundir import candidates
from dare_bench.engine.scope import Scope
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.types import LoopStats, Request

TIMED = 3


@dataclass(frozen=True)
class Preview:
    """``forwards`` is an upper bound (rows may stop early); ``seconds`` comes from a few samples answered now."""

    run_id: str
    run_path: Path
    exists: bool
    spec: dict[str, Any]
    model: dict[str, Any]
    decoding: dict[str, dict[str, Any]]
    likelihood: dict[str, dict[str, Any]]
    requests: dict[str, int]
    forwards: int
    seconds: float
    timed: int
    prompt: str

    def plain(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "run_path": str(self.run_path)}


def preview(model: Any = None, **fields: Any) -> Preview:
    """See what :func:`~dare_bench.engine.evaluate.evaluate` would do with the same arguments.

    Raises: the errors that ``evaluate`` raises before it computes.
    """
    spec, opened = settled(None, model, fields)
    Scope.of(spec.limit, spec.samples)
    source_class = registry().get("harness", spec.harness).load()
    check(source_class, spec)
    opener = Opener(opened)
    content = opener.content(spec)
    opened = opener.loaded(spec)
    prepare = preparer(opened, spec)
    requests = [prepare(request) for request in source_class(spec, opened).requests()]
    decoding, likelihood = ident.settings_by_task(opened, requests)
    prefix = fingerprint.readable_prefix(spec.model, spec.harness, sorted(set(spec.tasks)), spec.adapter)
    run_id = fingerprint.run_id(prefix, ident.identity(spec, opened, content, decoding, likelihood))
    there = candidates(Path(spec.output_path), run_id)
    forwards = [opened.forwards(request) for request in requests]
    seconds, timed = estimate(opened, requests, forwards, spec.max_rows)
    return Preview(
        run_id=run_id,
        run_path=there[-1][1] if there else Path(spec.output_path) / run_id,
        exists=bool(there),
        spec=spec.model_dump(mode="json"),
        model={**dataclasses.asdict(opened.spec), "content_hash": content},
        decoding=decoding,
        likelihood=likelihood,
        requests=dict(Counter(request.task for request in requests)),
        forwards=sum(forwards),
        seconds=seconds,
        timed=timed,
        prompt=rendered(opened, requests[0]) if requests else "",
    )


def estimate(
    model: LoadedModel, requests: Sequence[Request], forwards: Sequence[int], max_rows: int | None
) -> tuple[float, int]:
    """(seconds for all requests, samples timed): a short, a middling and a long one are answered now, and all others
    are taken to need as many seconds a forward pass. Rows that stop early make it less, longer prompts more."""
    by_cost = sorted(range(len(requests)), key=lambda i: (forwards[i], size(requests[i])))
    if not by_cost:
        return 0.0, 0
    picks = {by_cost[round(share * (len(by_cost) - 1))] for share in (0.0, 0.5, 1.0)}
    begin, passes = time.perf_counter(), 0
    for kind, compute in (("generate", model.generate), ("score", model.score)):
        chosen = [requests[i] for i in picks if requests[i].kind == kind]
        if chosen:
            for sample in compute(iter(chosen), max_rows=max_rows, stats=LoopStats()):
                passes += sample.answer.nfe if sample.answer is not None else 0
    took = time.perf_counter() - begin
    # Rows that stop early take fewer passes than the bound: their share is carried over to the others.
    bound = sum(forwards[i] for i in picks)
    return took * sum(forwards) / max(1, bound), len(picks) if passes else 0


def rendered(model: LoadedModel, request: Request) -> str:
    """The exact text that the model reads, as far as it can be shown as text."""
    if isinstance(request.prompt, str):
        return request.prompt
    tokens = model.encode(request.prompt)
    decode = getattr(model.tokenizer, "decode", None)
    return str(decode(tokens)) if decode is not None else " ".join(map(str, tokens))
