"""Run one node in the process that an executor chose, with a log: a training, the evaluations of a checkpoint, the
board."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pkgutil
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.engine.environment import cuda
from dare_bench.engine.evaluate import Outcome, evaluate_all
from dare_bench.engine.plan import plan
from dare_bench.errors import CheckpointError
from dare_bench.runs.text import no_answer
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.record import RunOfNode, folder
from dare_bench.sweeps.sweep_graph import SweepNode
from dare_bench.training.folder import missing

LOG = "log.txt"
_LOGGERS = ("", "dare_bench", "transformers", "lm_eval", "opencompass")
"""Loggers whose messages go into the log of the node; some of them do not propagate to the root."""


class Ended(NamedTuple):
    """How a node ended: its runs, and why it failed although there may be some."""

    runs: tuple[RunOfNode, ...] = ()
    error: str = ""


Handler = Callable[[Path, SweepNode, Mapping[str, Any]], Ended]
"""Runs a node: (OUT, node, overrides of its settings: ``device``). An exception is a failure of the node, too."""
BUILDER = "dare_bench.leaderboards.builder:build"
"""Imported by name: sweeps must not import leaderboards."""


def train(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    """Train, or resume from the last checkpoint in the folder."""
    from dare_bench.training.run import train as run_training

    fields = {**node.settings, **overrides}
    run_training(**{"output_path": str(node.path(out)), **fields, **fields.pop("options", {})})
    return Ended()


def evaluate(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    """Evaluate a checkpoint, in many runs for a suite; finished runs are only read. A run that is refused and samples
    that failed are the error of the node, after all other runs. Raises CheckpointError: the training was kept without
    its weights.
    """
    fields = {**node.settings, **overrides, "output_path": str(out / "runs")}
    if node.training is not None:
        fields["model"] = str(out / node.training)
        if lost := missing(out / node.training):
            raise CheckpointError(
                f"{out / node.training} was kept without its {', '.join(lost)}, so that it cannot be evaluated again; "
                f"remove {folder(out, node.training)} and {out / node.training} to train it again"
            )
    outcomes = list(evaluate_all(plan(fields)))
    runs = tuple(RunOfNode(id=outcome.run.path.name) for outcome in outcomes if outcome.run is not None)
    return Ended(runs, _first_failure(outcomes))


def board(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    """Build the site of all runs."""
    name = node.settings.get("board")
    if name is None:
        name = str(out / "board.yaml")
        atomic_write_json(name, node.settings)  # JSON is YAML
    build = pkgutil.resolve_name(BUILDER)
    build([out / "runs"], node.path(out), board=name, on_problem=lambda text: print(text, file=sys.stderr))
    return Ended()


HANDLERS: Mapping[str, Handler] = {"train": train, "eval": evaluate, "board": board}


def _first_failure(outcomes: list[Outcome]) -> str:
    if refused := [outcome for outcome in outcomes if outcome.run is None]:
        name = f"{refused[0].planned.name}: " if refused[0].planned.name else ""
        count = f"{len(refused)} of {len(outcomes)} benchmarks were not run; the first is " if len(outcomes) > 1 else ""
        return f"{count}{name}{refused[0].reason}"
    for run in (outcome.run for outcome in outcomes):
        if run is not None and run.status != "complete":
            failed = len(run.block.failures) if run.block is not None else 0
            return f"{run.path.name}: {no_answer(failed)} left out of the scores"
    return ""


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
