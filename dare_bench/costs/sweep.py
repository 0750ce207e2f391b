"""The estimated cost of a sweep (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.costs import recipe
from dare_bench.costs.gpus import GPUS
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import preview
from dare_bench.engine.progress import duration
from dare_bench.errors import DareError, UsageError
from dare_bench.loading import here
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.record import Record, names, read
from dare_bench.sweeps.run import pending
from dare_bench.sweeps.sweep_graph import SweepNode, graph, settle
from dare_bench.sweeps.sweep_spec import read_spec
from dare_bench.training.spec import train_spec

SMALL = 400_000_000
"""Largest size in bytes of the weights of a checkpoint that is loaded for an estimate, and timed on a few samples."""
_LOADING = ("model", "adapter", "family", "model_args", "dtype")
"""Settings that load a checkpoint."""


@dataclass(frozen=True)
class WorkCost:
    """``forwards``: maximum number of forward passes, counted per row; ``flop``: operations; ``seconds``: on this
    machine; ``text``: all of these with their sources. Unknown values are None."""

    text: str
    forwards: int | None = None
    flop: float | None = None
    seconds: float | None = None


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
            UsageError: an invalid file, or an unknown name in it. RunError: a node's file is damaged.
        """
        spec, out = read_spec(source), Path(output_path).absolute()
        nodes = settle(graph(spec), names(out))
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
        seconds = [cost.seconds for cost in todo if cost.seconds is not None]
        if not todo:
            return ["all nodes are done"]
        unknown = f"; the time of {len(todo) - len(seconds)} of them is unknown" if len(seconds) < len(todo) else ""
        return [
            f"nodes to do: {len(todo)}, about {duration(sum(seconds))} on this machine, one after another{unknown}",
            "not counted: imports, loading, reading data, scoring, the optimizer and saving, which take some seconds a "
            "node, most of the time of a short sweep",
            f"assumed for GPU hours: {GPUS['H100'].text}; rows that stop early make evaluations cheaper",
        ]

    def plain(self) -> dict[str, Any]:
        """The JSON record."""
        nodes = [
            {"id": node.id, "kind": node.kind, "after": list(node.after), "status": self.records[node.id].status,
             "done": node.id in self.done, **asdict(self.costs[node.id])}
            for node in self.nodes
        ]  # fmt: skip
        return {"name": self.name, "path": str(self.out), "nodes": nodes, "notes": self.notes}

    def _cost(self, node: SweepNode) -> WorkCost:
        if node.id in self.done or node.kind == "board":
            return WorkCost("done" if node.id in self.done else "a few seconds", seconds=0.0)
        try:
            return _training(node.settings) if node.kind == "train" else self._evaluation(self._fields(node))
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

    def _evaluation(self, fields: dict[str, Any]) -> WorkCost:
        folder, forwards, seconds, hours, refused = here(str(fields["model"])), 0, 0.0, 0.0, list[str]()
        is_small = folder is not None and sum(f.stat().st_size for f in folder.glob("*.safetensors")) <= SMALL
        runs = plan(fields)
        for run in runs:
            if is_small:
                try:
                    timed = preview(**{**run.fields, "output_path": str(self.out / "runs")})
                    forwards, seconds = forwards + timed.forwards, seconds + (timed.timing.seconds or 0.0)
                except DareError as error:
                    refused.append(f"{run.name}: {error}" if run.name else str(error))
            elif run.recipe is None:
                name = run.name or fields.get("tasks")
                return WorkCost(f"unknown without loading the checkpoint (dare-bench eval --dry-run times it): {name}")
            else:
                most = recipe.estimate(run.recipe, run.fields).at_most
                forwards, hours = forwards + most.forwards, hours + most.hours
        if not is_small:
            return WorkCost(f"at most {forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe)", forwards)
        if len(refused) == len(runs):
            return WorkCost(f"cannot be run: {refused[0]}")
        failed = f"; {len(refused)} cannot be run: {refused[0]}" if refused else ""
        text = f"at most {forwards:,} forwards, {duration(seconds)} (from timed samples){failed}"
        return WorkCost(text, forwards, seconds=seconds)


def _training(settings: Mapping[str, Any]) -> WorkCost:
    """The operations of a training, and its time on a GPU."""
    from dare_bench.costs.training import estimate

    step = estimate(train_spec(**settings, output_path="-"))
    phases, count = step.phases, step.steps
    flop = count * sum(of.flop for of in phases.values())
    hours = count * sum(step.gpu.seconds(of.flop, of.moved) for of in phases.values()) / 3600
    each = ", ".join(f"{name} {of.rows:,.6g}" for name, of in phases.items())
    text = f"{count:,} steps of {step.about} ({step.rows.source}); forwards in a step: {each}"
    forwards = round(count * sum(of.rows for of in phases.values()))
    return WorkCost(f"{text}; {flop:.3g} operations, {hours:,.2f} GPU hours", forwards, flop)
