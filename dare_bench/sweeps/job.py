"""Run one node, in the process that an executor chose, unless it is done; write its log, cost and result."""

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
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from dare_bench.engine.environment import cuda
from dare_bench.errors import in_one_line
from dare_bench.sweeps import record as records
from dare_bench.sweeps.handlers import HANDLERS, Handler
from dare_bench.sweeps.record import digest_of, folder, inputs_of, read, write
from dare_bench.sweeps.sweep_graph import SweepNode

LOG = "log.txt"
UNCHANGED = "unchanged"
"""Returned by the job of a node that is done, from inputs that have not changed."""
_LOGGERS = ("", "dare_bench", "transformers", "lm_eval", "opencompass")
"""Loggers whose messages go into the log of the node; some of them do not propagate to the root."""


@dataclass(frozen=True)
class NodeJob:
    """A node to run in the folder ``out``, by ``settings`` beside its own. ``progress``: it says on stderr that it
    starts."""

    out: Path
    node: SweepNode
    settings: Mapping[str, Any]
    progress: bool


def work(job: NodeJob) -> str:
    """Train or evaluate: the function of every job. Returns the node's status."""
    try:
        return perform(job, HANDLERS)
    finally:  # free the memory of the node before the next one in this process
        gc.collect()
        if (gpu := cuda()) is not None:
            gpu.empty_cache()


def perform(job: NodeJob, handlers: Mapping[str, Handler]) -> str:
    """Run a node by the handler of its kind, unless it is done from the same inputs.

    Raises: the exception of the handler, after it is in the node's file and log.
    """
    out, node = job.out, job.node
    if records.is_done(out, node):
        return UNCHANGED
    record = read(out, node)
    record.status, record.error, record.settings, record.after = "running", "", node.settings, node.after
    record.starts, record.where, before = record.starts + 1, _where(), record.seconds
    write(out, record)
    if job.progress:
        print(f"{node.id}: started in {record.where}", file=sys.stderr, flush=True)
    began, computed = time.perf_counter(), time.process_time()
    with _captured(folder(out, node.id) / LOG):
        try:
            inputs = inputs_of(out, node)
            digest = digest_of(node, inputs)
            if node.kind == "train" and record.digest not in ("", digest):
                _set_aside(node.path(out))
            record.inputs, record.digest, record.outputs = inputs, digest, {}
            record.cost = {"seconds": before} if before else {}
            write(out, record)
            record.outputs |= handlers[node.kind](out, node, job.settings, record)
            record.status = "done"
        except Exception as error:
            record.status, record.error = "failed", in_one_line(error)
            traceback.print_exc()
            raise
        finally:
            took = before + time.perf_counter() - began
            if record.status == "running":  # interrupted, to be resumed
                record.status, record.error = "pending", records.INTERRUPTED
            record.cost |= {"seconds": round(took, 3), "cpu_seconds": round(time.process_time() - computed, 3)}
            write(out, record)
    return record.status


def _set_aside(path: Path) -> None:
    """Rename the folder of a training from other inputs."""
    if path.exists():
        backups = (path.with_name(f"{path.name}.old-{number}") for number in count(1))
        backup = path.rename(next(backup for backup in backups if not backup.exists()))
        print(f"the inputs have changed; the previous training is in {backup.name}", file=sys.stderr)


@contextlib.contextmanager
def _captured(file: Path) -> Iterator[None]:
    """Append log messages, stdout and stderr to ``file``."""
    file.parent.mkdir(parents=True, exist_ok=True)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    previous = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    with file.open("a", buffering=1) as stream:
        stream.write(f"== {datetime.now().astimezone().isoformat()} {_where()}\n")
        handler = logging.StreamHandler(stream)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        for logger in loggers:
            has_handler = logger.name in ("root", "dare_bench")
            logger.handlers, logger.propagate = [handler] if has_handler else [], not has_handler
        logging.getLogger("dare_bench").setLevel(logging.INFO)
        try:
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                yield
        finally:
            for logger, handlers, level, propagate in previous:
                logger.handlers, logger.level, logger.propagate = handlers, level, propagate


def _where() -> str:
    return f"process {os.getpid()} on {platform.node()}"
