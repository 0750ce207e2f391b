"""The estimated cost of a sweep (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.costs import recipe
from dare_bench.costs.checkpoint import find
from dare_bench.costs.gpus import GPUS
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import most_forwards
from dare_bench.errors import DareError, UsageError
from dare_bench.loading import here
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.record import Record, read, refuse_foreign
from dare_bench.sweeps.run import pending
from dare_bench.sweeps.sweep_graph import SweepNode, graph
from dare_bench.sweeps.sweep_spec import read_spec
from dare_bench.training.spec import train_spec

_LOADING = ("model", "adapter", "family", "model_args", "dtype")
"""Settings that load a checkpoint."""


class WorkCost(NamedTuple):
    """``text``: what is known, with its source; ``hours``: GPU hours, None if they are unknown."""

    text: str
    hours: float | None = None


@dataclass
class SweepEstimates:
    """The graph of a sweep in its folder, with the estimated costs of the nodes that are not done; ``refused``: nodes
    that would fail, with the error of their settings."""

    name: str
    out: Path
    nodes: list[SweepNode]
    records: dict[str, Record]
    done: set[str]
    costs: dict[str, WorkCost] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str | Path | Mapping[str, Any], output_path: str | Path) -> SweepEstimates:
        """Estimate a sweep.

        Raises:
            UsageError: an invalid file, or an unknown name in it. RunError: a node's file is damaged, or the folder is
                another sweep's.
        """
        spec, out = read_spec(source), Path(output_path).absolute()
        refuse_foreign(out, spec.name)
        nodes = graph(spec)
        todo = pending(out, nodes)
        refuse_unknown(nodes, todo)
        done = {node.id for node in nodes} - todo
        estimates, known = cls(spec.name, out, nodes, {node.id: read(out, node) for node in nodes}, done), {}
        for node in nodes:
            key = repr(sorted(estimates._fields(node).items(), key=str)) if node.id in todo else "done"
            if key not in known or node.id in estimates.refused:
                known[key] = estimates._cost(node)
            estimates.costs[node.id] = known[key]
        return estimates

    @property
    def notes(self) -> list[str]:
        """The total, and the assumptions."""
        todo = [self.costs[node.id] for node in self.nodes if node.id not in self.done and node.kind != "board"]
        hours = [cost.hours for cost in todo if cost.hours is not None]
        if not todo:
            return ["all nodes are done"]
        unknown = f"; those of {len(todo) - len(hours)} nodes are unknown" if len(hours) < len(todo) else ""
        return [
            f"nodes to do: {len(todo)}, {sum(hours):,.2f} GPU hours{unknown}",
            "not counted: imports, loading, reading data, scoring, the optimizer and saving, which take some seconds a "
            "node, most of the time of a short sweep",
            f"assumed for GPU hours: {GPUS['H100'].text}; rows that stop early make evaluations cheaper",
        ]

    def _cost(self, node: SweepNode) -> WorkCost:
        if node.id in self.done or node.kind == "board":
            return WorkCost("done" if node.id in self.done else "a few seconds")
        try:
            return _training(node.settings) if node.kind == "train" else _evaluation(self._fields(node))
        except UsageError as error:
            self.refused[node.id] = str(error)
            return WorkCost(f"would fail: {error}")
        except DareError as error:
            return WorkCost(f"cannot be estimated: {error}")

    def _fields(self, node: SweepNode) -> dict[str, Any]:
        """The settings that a node's cost depends on: a trained checkpoint has the size of its base, and no cost
        depends on a training's seed and learning rate."""
        start = next((n for n in self.nodes if n.id == node.training), node)
        dropped = _LOADING if start is not node else ("seed", "learning_rate") if node.kind == "train" else ()
        settings = {name: value for name, value in node.settings.items() if name not in dropped}
        loading = {name: start.settings[name] for name in _LOADING if name in start.settings}
        return settings | loading if node.kind != "board" else {"board": node.id}


def _evaluation(fields: dict[str, Any]) -> WorkCost:
    """Forwards of the requests of a checkpoint that is on this machine, or forwards and time by a recipe."""
    runs, forwards, hours = plan(fields), 0, 0.0
    if here(str(fields["model"])) is not None:
        opened = find(str(fields["model"]), fields.get("family"))[0]
        forwards = sum(most_forwards(opened, run.fields) for run in runs)
        return WorkCost(f"at most {forwards:,} forwards (dare-bench eval --dry-run times some)")
    for run in runs:
        if run.recipe is None:
            name = run.name or fields.get("tasks")
            return WorkCost(f"unknown: the checkpoint is not on this machine, and {name} is not a recipe")
        most = recipe.estimate(run.recipe, run.fields).at_most
        forwards, hours = forwards + most.forwards, hours + most.hours
    return WorkCost(f"at most {forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe)", hours)


def _training(settings: Mapping[str, Any]) -> WorkCost:
    """The operations of a training, and its time on a GPU."""
    from dare_bench.costs.training import estimate

    step = estimate(train_spec(**settings, output_path="-"))
    phases, count = step.phases, step.steps
    flop = count * sum(of.flop for of in phases.values())
    hours = count * sum(step.gpu.seconds(of.flop, of.moved) for of in phases.values()) / 3600
    each = ", ".join(f"{name} {of.rows:,.6g}" for name, of in phases.items())
    text = f"{count:,} steps of {step.about} ({step.rows.source}); forwards in a step: {each}"
    return WorkCost(f"{text}; {flop:.3g} operations, {hours:,.2f} GPU hours", hours)
