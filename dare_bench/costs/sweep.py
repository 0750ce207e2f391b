"""The estimated cost of a sweep (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.costs import recipe
from dare_bench.costs.checkpoint import find
from dare_bench.costs.gpus import GPUS
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import most_forwards
from dare_bench.errors import DareError, UsageError
from dare_bench.loading import here
from dare_bench.sweeps.run import pending, refuse_unknown
from dare_bench.sweeps.sweep_graph import SweepNode, graph
from dare_bench.sweeps.sweep_spec import read_spec
from dare_bench.training.spec import train_spec

_LOADING = ("model", "adapter", "family", "model_args", "dtype")
"""Settings that load a checkpoint."""


class NodeCost(NamedTuple):
    """``text``: what is known, with its source; ``hours``: GPU hours, None if they are unknown; ``error``: of settings
    with which the node would fail."""

    text: str
    hours: float | None = None
    error: str = ""


Estimates = list[tuple[SweepNode, NodeCost | None]]
"""The estimated cost of each node of a sweep, in the order of the graph; None: it is done."""


def estimate(source: str | Path | Mapping[str, Any], output_path: str | Path) -> Estimates:
    """Estimate a sweep.

    Raises:
        UsageError: an invalid file, or an unknown name in it. RunError: a node's file is damaged.
    """
    spec, out = read_spec(source), Path(output_path).absolute()
    nodes = graph(spec)
    todo = pending(out, nodes)
    refuse_unknown(nodes, todo)
    of, known = {node.id: node for node in nodes}, dict[str, NodeCost]()
    estimates: Estimates = []
    for node in nodes:
        cost = None
        if node.id in todo:
            fields = _fields(node, of.get(node.training or "", node))
            key = f"{node.kind} {sorted(fields.items(), key=str)}"
            cost = known[key] = known.get(key) or _cost(node.kind, fields)
        estimates.append((node, cost))
    return estimates


def total(estimates: Estimates) -> list[str]:
    """The total in lines, with what it assumes."""
    hours = [cost.hours for node, cost in estimates if cost is not None and node.kind != "board"]
    if not hours:
        return ["all nodes are done"]
    known = [value for value in hours if value is not None]
    unknown = f"; those of {len(hours) - len(known)} nodes are unknown" if len(known) < len(hours) else ""
    return [
        f"nodes to do: {len(hours)}, {sum(known):,.2f} GPU hours{unknown}",
        "not counted: imports, loading, reading data, scoring, the optimizer and saving, which take some seconds a "
        "node, most of the time of a short sweep",
        f"assumed for GPU hours: {GPUS['H100'].text}; rows that stop early make evaluations cheaper",
    ]


def _fields(node: SweepNode, start: SweepNode) -> dict[str, Any]:
    """The settings that a node's cost depends on: a trained checkpoint has the size of its base, with which its
    training ``start`` begins, and no cost depends on a training's seed and learning rate."""
    dropped = _LOADING if start is not node else ("seed", "learning_rate") if node.kind == "train" else ()
    loading = {name: start.settings[name] for name in _LOADING if name in start.settings}
    return {name: value for name, value in node.settings.items() if name not in dropped} | loading


def _cost(kind: str, fields: dict[str, Any]) -> NodeCost:
    if kind == "board":
        return NodeCost("a few seconds")
    try:
        return _training(fields) if kind == "train" else _evaluation(fields)
    except UsageError as error:
        return NodeCost(f"would fail: {error}", error=str(error))
    except DareError as error:
        return NodeCost(f"cannot be estimated: {error}")


def _evaluation(fields: dict[str, Any]) -> NodeCost:
    """Forwards of the requests of a checkpoint that is on this machine, or forwards and time by a recipe."""
    runs, forwards, hours = plan(fields), 0, 0.0
    if here(str(fields["model"])) is not None:
        opened = find(str(fields["model"]), fields.get("family")).model
        forwards = sum(most_forwards(opened, run.fields) for run in runs)
        return NodeCost(f"at most {forwards:,} forwards (dare-bench eval --dry-run times some)")
    for run in runs:
        if run.recipe is None:
            name = run.name or fields.get("tasks")
            return NodeCost(f"unknown: the checkpoint is not on this machine, and {name} is not a recipe")
        most = recipe.estimate(run.recipe, run.fields)
        forwards, hours = forwards + most.forwards, hours + most.hours
    return NodeCost(f"at most {forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe)", hours)


def _training(settings: Mapping[str, Any]) -> NodeCost:
    """The operations of a training, and its time on a GPU."""
    from dare_bench.costs.training import estimate as estimate_step

    step = estimate_step(train_spec(**settings, output_path="-"))
    phases, count = step.phases, step.steps
    flop = count * sum(of.flop for of in phases.values())
    hours = count * sum(step.gpu.seconds(of.flop, of.moved) for of in phases.values()) / 3600
    each = ", ".join(f"{name} {of.rows:,.6g}" for name, of in phases.items())
    text = f"{count:,} steps of {step.about} ({step.rows.source}); forwards in a step: {each}"
    return NodeCost(f"{text}; {flop:.3g} operations, {hours:,.2f} GPU hours", hours)
