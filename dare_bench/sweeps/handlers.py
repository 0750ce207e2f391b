"""What a node of each kind does: a training, the evaluations of a checkpoint, the board."""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.engine.evaluate import Outcome, evaluate_all
from dare_bench.engine.plan import plan
from dare_bench.errors import CheckpointError
from dare_bench.runs.reader import Run
from dare_bench.runs.text import no_answer
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.record import HeadlineScore, RunSummary, folder
from dare_bench.sweeps.sweep_graph import SweepNode
from dare_bench.training.folder import OtherTrainingError, missing


class Ended(NamedTuple):
    """How a node ended: its runs, and why it failed although there may be some."""

    runs: tuple[RunSummary, ...] = ()
    error: str = ""


Handler = Callable[[Path, SweepNode, Mapping[str, Any]], Ended]
"""Runs a node: (OUT, node, overrides of its settings: ``device``). An exception is a failure of the node, too."""
BUILDER = "dare_bench.leaderboards.builder:build"
"""Imported by name: sweeps must not import leaderboards."""


def train(out: Path, node: SweepNode, overrides: Mapping[str, Any]) -> Ended:
    """Train, or resume from the last checkpoint in the folder; a training from other checkpoints or data is kept beside
    it."""
    from dare_bench.training.run import train as run_training

    place = node.path(out)
    fields = {**node.settings, **overrides}
    fields = {"output_path": str(place), **fields, **fields.pop("options", {})}
    try:
        run_training(**fields)
    except OtherTrainingError as error:
        backup = next(path for n in count(1) if not (path := place.with_name(f"{place.name}.old-{n}")).exists())
        place.rename(backup)
        print(f"{error}; it is kept in {backup.name}", file=sys.stderr)
        run_training(**fields)
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
    runs = tuple(summary(outcome.run) for outcome in outcomes if outcome.run is not None)
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


def summary(run: Run) -> RunSummary:
    """A run with its headline scores."""
    heads = [score for task in run.top_level() if (score := run.headline(task)) is not None]
    scores = [HeadlineScore(task=s.task, metric=s.key, value=s.value, lo=s.lo, hi=s.hi, n=s.n) for s in heads]
    return RunSummary(id=run.path.name, status=run.status, scores=scores)


def _first_failure(outcomes: list[Outcome]) -> str:
    refused = [outcome for outcome in outcomes if outcome.run is None]
    if refused:
        first = refused[0]
        reason = f"{first.planned.name}: {first.reason}" if first.planned.name else str(first.reason)
        count = f"{len(refused)} of {len(outcomes)} benchmarks were not run; the first is "
        return f"{count if len(outcomes) > 1 else ''}{reason}"
    for outcome in outcomes:
        run = outcome.run
        if run is not None and run.status != "complete":
            failed = len(run.block.failures) if run.block is not None else 0
            return f"{run.path.name}: {no_answer(failed)} left out of the scores"
    return ""
