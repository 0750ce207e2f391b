"""Run one node, in the process that an executor chose; write its log and result."""

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
from pathlib import Path
from typing import Any

from dare_bench.engine.environment import cuda
from dare_bench.errors import in_one_line
from dare_bench.sweeps.handlers import HANDLERS, Handler
from dare_bench.sweeps.record import INTERRUPTED, folder, read, write
from dare_bench.sweeps.sweep_graph import SweepNode

LOG = "log.txt"
_LOGGERS = ("", "dare_bench", "transformers", "lm_eval", "opencompass")
"""Loggers whose messages go into the log of the node; some of them do not propagate to the root."""


@dataclass(frozen=True)
class NodeJob:
    """A node to run in the folder ``out``; ``settings`` replace some of those of the node. ``progress``: it says on
    stderr that it starts."""

    out: Path
    node: SweepNode
    settings: Mapping[str, Any]
    progress: bool


def work(job: NodeJob) -> str:
    """The function of every job. Returns the node's status."""
    try:
        return perform(job, HANDLERS)
    finally:  # free the memory of the node before the next one in this process
        gc.collect()
        if (gpu := cuda()) is not None:
            gpu.empty_cache()


def perform(job: NodeJob, handlers: Mapping[str, Handler]) -> str:
    """Run a node by the handler of its kind.

    Raises: the exception of the handler, after it is in the node's file and log.
    """
    out, node = job.out, job.node
    record = read(out, node)
    record.status, record.error, record.settings, record.after = "running", "", node.settings, node.after
    record.starts, record.started, record.where = record.starts + 1, time.time(), _where()
    record.runs, before = [], record.seconds
    write(out, record)
    if job.progress:
        print(f"{node.id}: started in {record.where}", file=sys.stderr, flush=True)
    began = time.perf_counter()
    with _captured(folder(out, node.id) / LOG):
        try:
            handlers[node.kind](out, node, job.settings, record)
            record.status = "done"
        except Exception as error:
            record.status, record.error = "failed", in_one_line(error)
            traceback.print_exc()
            raise
        finally:
            if record.status == "running":  # interrupted, to be resumed
                record.status, record.error = "pending", INTERRUPTED
            record.seconds = round(before + time.perf_counter() - began, 3)
            write(out, record)
    return record.status


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
