"""Run one node, in the process that an executor chose; write its log."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench.engine.environment import cuda
from dare_bench.sweeps.handlers import HANDLERS, Ended, Handler
from dare_bench.sweeps.record import folder
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


def work(job: NodeJob, handlers: Mapping[str, Handler] = HANDLERS) -> Ended:
    """The function of every job: run a node by the handler of its kind, whose exceptions it raises and logs."""
    if job.progress:
        print(f"{job.node.id}: started in {_where()}", file=sys.stderr, flush=True)
    with _captured(folder(job.out, job.node.id) / LOG):
        try:
            ended = handlers[job.node.kind](job.out, job.node, job.settings)
            if ended.error:
                print(ended.error)
            return ended
        except Exception:
            traceback.print_exc()
            raise
        finally:  # free the memory of the node before the next one in this process
            gc.collect()
            if (gpu := cuda()) is not None:
                gpu.empty_cache()


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
