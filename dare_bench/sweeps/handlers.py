"""How each kind of node is done: a training, the evaluations of a checkpoint, the board."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import fingerprint
from dare_bench.engine.evaluate import Outcome, evaluate_all
from dare_bench.engine.plan import plan
from dare_bench.errors import DataError, IncompleteError, UsageError
from dare_bench.reading import read_json
from dare_bench.runs.reader import Run
from dare_bench.runs.text import no_answer
from dare_bench.runs.writer import atomic_write_json
from dare_bench.sweeps.graph import SweepNode
from dare_bench.sweeps.record import Record, run_content

Handler = Callable[[Path, SweepNode, Mapping[str, Any], Record], dict[str, Any]]
"""Does a node: (OUT, node, settings of the place: ``device``) -> outputs. What it raises is the node's failure; what it
has put into the record's outputs and cost by then is kept."""
Builder = Callable[..., Any]
"""Builds a site: (runs, out, board=name or file)."""
BUILDER = "dare_bench.leaderboards.builder:build"
"""Reached by name, as everything that the core does not import: boards stand on runs alone."""


def train(out: Path, node: SweepNode, place: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Train, or go on from the last checkpoint in the folder."""
    from dare_bench.training.run import train as work

    _reset_peak_memory()
    folder = node.place(out)
    fields = {**node.asked, **_given(place)}
    trained = work(output_path=str(folder), **{**fields, **fields.pop("options", {})})
    record.cost |= {**_gpu_facts(), **_steps(folder)}
    return {"path": node.id, "content": fingerprint.content_hash(trained.path)}


def evaluate(out: Path, node: SweepNode, place: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Make all runs that the evaluation stands for (a suite stands for many); those that are finished are only read.

    Raises:
        UsageError: a run was refused. IncompleteError: samples failed. Both after all other runs were made.
    """
    fields = {**node.asked, **_given(place), "output_path": str(out / "runs")}
    if node.of is not None:
        fields["model"] = str(out / node.of)
    outcomes = list(evaluate_all(plan(fields)))
    runs = [outcome.run for outcome in outcomes if outcome.run is not None]
    record.outputs |= outputs_of(runs)
    record.cost |= _cost(runs)
    _raise_failures(outcomes)
    return record.outputs


HANDLERS: Mapping[str, Handler] = {"train": train, "eval": evaluate}


def board(builder: Builder | str) -> Handler:
    """The handler of a board by a site builder, or by the name ``module:attribute`` of one."""

    def build(out: Path, node: SweepNode, place: Mapping[str, Any], record: Record) -> dict[str, Any]:
        make = builder
        if isinstance(make, str):
            module, _, attribute = make.partition(":")
            make = getattr(importlib.import_module(module), attribute)
        name = node.asked.get("board")
        if name is None:
            name = str(out / "board.yaml")
            atomic_write_json(name, node.asked)  # JSON is YAML
        make([out / "runs"], node.place(out), board=name, on_problem=lambda text: print(text, file=sys.stderr))
        return {"path": "site/index.html"}

    return build


def _given(place: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in place.items() if value is not None}


def outputs_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What a node's file says of its runs: their scores, and a hash of all they hold."""
    content = fingerprint.digest([run_content(run) for run in runs], 32)
    return {"runs": [_run_summary(run) for run in runs], "content": content}


def _run_summary(run: Run) -> dict[str, Any]:
    heads = [score for task in run.top_level() if (score := run.headline(task)) is not None]
    scores = [{"task": s.task, "metric": s.key, "value": s.value, "lo": s.lo, "hi": s.hi, "n": s.n} for s in heads]
    results = f"runs/{run.path.name}/{run.results_file.name}" if run.results_file is not None else None
    return {"id": run.path.name, "results": results, "status": run.status, "scores": scores}


def _raise_failures(outcomes: list[Outcome]) -> None:
    refused = [outcome for outcome in outcomes if outcome.run is None]
    if refused:
        first = refused[0]
        what = f"{first.planned.name}: {first.reason}" if first.planned.name else str(first.reason)
        counted = f"{len(refused)} of {len(outcomes)} benchmarks were not run; the first is "
        raise UsageError(f"{counted if len(outcomes) > 1 else ''}{what}")
    for outcome in outcomes:
        run = outcome.run
        if run is not None and run.status != "complete":
            failed = len(run.block.failures) if run.block is not None else 0
            raise IncompleteError(f"{run.path.name}: {no_answer(failed)} left out of the scores")


def _cost(runs: list[Run]) -> dict[str, Any]:
    """The runs' own accounts together, over all their sessions."""
    costs = [run.block.cost for run in runs if run.block is not None]
    peaks = [cost.peak_memory_mb for cost in costs if cost.peak_memory_mb is not None]
    summed = {name: sum(getattr(cost, name) for cost in costs) for name in ("requests", "nfe", "tokens_to_eos")}
    return {
        **summed,
        "answering_seconds": round(sum(cost.seconds for cost in costs), 3),
        **({"peak_memory_mb": max(peaks)} if peaks else {}),
    }


def _steps(folder: Path) -> dict[str, Any]:
    try:
        return {"steps": read_json(folder / "trainer_state.json", DataError)["global_step"]}
    except (DataError, KeyError):  # another trainer's own business
        return {}


def _reset_peak_memory() -> None:
    if _cuda() is not None:
        _cuda().reset_peak_memory_stats()


def _gpu_facts() -> dict[str, Any]:
    cuda = _cuda()
    if cuda is None:
        return {}
    return {"gpu": cuda.get_device_name(), "peak_memory_mb": round(cuda.max_memory_allocated() / 2**20, 1)}


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None
