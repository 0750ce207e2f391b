"""Doing one node, in whatever process an executor puts it: look whether it is done, do it, keep its log and cost."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.sweeps import record as records
from dare_bench.sweeps.graph import SweepNode
from dare_bench.sweeps.handlers import HANDLERS, Handler
from dare_bench.sweeps.record import Attempt, error_text, folder, inputs_of, mark_of, read, write

LOG = "log.txt"
UNCHANGED = "unchanged"
"""What a job returns that found its node done, from inputs that turned out to be the same."""
_LOGGERS = ("", "dare_bench", "transformers", "lm_eval", "opencompass")
"""Loggers whose lines belong to the node that is being done; some of them do not hand theirs on to the root."""


def payload(out: Path, node: SweepNode, device: str | None) -> dict[str, Any]:
    """A node as plain data for another process."""
    return {"out": str(out), "node": node.plain(), "place": {"device": device}}


def work(given: Mapping[str, Any]) -> str:
    """Train or evaluate: the function of every job. Returns the node's status."""
    try:
        return perform(given, HANDLERS)
    finally:
        _free_memory()


def perform(given: Mapping[str, Any], handlers: Mapping[str, Handler]) -> str:
    """Do a node by the handler of its kind, unless it is done and was made from what it would be made from now.

    Raises: what the handler raises, once it is in the node's file and log.
    """
    out, node = Path(given["out"]), SweepNode.read(given["node"])
    if records.is_done(out, node):
        return UNCHANGED
    record = read(out, node)
    record.status, record.error, record.asked, record.after = "running", "", node.asked, node.after
    record.attempts.append(Attempt(started=datetime.now().astimezone().isoformat(), where=_where()))
    write(out, record)
    began, computed = time.perf_counter(), time.process_time()
    with _captured(folder(out, node.id) / LOG):
        try:
            inputs = inputs_of(out, node)
            mark = mark_of(node, inputs)
            if node.kind == "train" and record.mark not in ("", mark):
                _set_aside(node.place(out))
            record.inputs, record.mark, record.outputs, record.cost = inputs, mark, {}, {}
            write(out, record)
            record.outputs |= handlers[node.kind](out, node, given["place"], record)
            record.status = "done"
        except Exception as error:
            record.status, record.error = "failed", error_text(error)
            traceback.print_exc()
            raise
        finally:
            took = time.perf_counter() - began
            record.attempts[-1].seconds = round(took, 3)
            if record.status == "running":  # Ctrl-C and the like: it goes on next time
                record.status, record.error = "pending", records.INTERRUPTED
            record.attempts[-1].error = record.error
            spent = {"seconds": round(took, 3), "cpu_seconds": round(time.process_time() - computed, 3)}
            record.cost = {**spent, **record.cost}
            write(out, record)
    return record.status


def _set_aside(place: Path) -> None:
    """A training from other inputs: its folder keeps what it has, under another name."""
    if place.exists():
        number = next(n for n in range(1, 10_000) if not place.with_name(f"{place.name}.old-{n}").exists())
        place.rename(place.with_name(f"{place.name}.old-{number}"))
        print(f"made from other inputs than before; what was there is in {place.name}.old-{number}", file=sys.stderr)


@contextlib.contextmanager
def _captured(file: Path) -> Iterator[None]:
    """Log records, stdout and stderr go into ``file``, behind what it has."""
    file.parent.mkdir(parents=True, exist_ok=True)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    with file.open("a", buffering=1) as stream:
        stream.write(f"== {datetime.now().astimezone().isoformat()} {_where()}\n")
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        for logger in loggers:
            own = logger.name in ("root", "dare_bench")
            logger.handlers, logger.propagate = [handler] if own else [], not own
        logging.getLogger("dare_bench").setLevel(logging.INFO)
        try:
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                yield
        finally:
            for logger, handlers, level, propagate in before:
                logger.handlers, logger.level, logger.propagate = handlers, level, propagate


def _free_memory() -> None:
    """Give a node's memory back before the next one in this process."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def _where() -> str:
    return f"process {os.getpid()} on {platform.node()}"
