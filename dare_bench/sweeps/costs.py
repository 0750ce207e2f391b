"""The estimated cost of a sweep (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dare_bench.costs import recipe, training
from dare_bench.costs.trace import GPUS, find
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import most_forwards
from dare_bench.errors import DareError, UsageError
from dare_bench.loading import here
from dare_bench.sweeps.run import pending, refuse_unknown
from dare_bench.sweeps.sweep_graph import SweepNode, graph
from dare_bench.sweeps.sweep_spec import SweepModel, read_spec
from dare_bench.training.spec import train_spec


class NodeCost(NamedTuple):
    """What is known, with its source; GPU hours if they are known; the ``error`` with which the node would fail."""

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
    nodes, out = graph(read_spec(source)), Path(output_path).absolute()
    todo = pending(out, nodes)
    refuse_unknown(nodes, todo)
    of, known, estimates = {node.id: node for node in nodes}, dict[str, NodeCost](), Estimates()
    for node in nodes:
        # A trained checkpoint has the size of its base; no cost depends on a training's seed and learning rate.
        start = of.get(node.training or "", node).settings
        fields = {**node.settings, **{name: start[name] for name in SweepModel.model_fields if name in start}}
        fields |= {"seed": 0, "learning_rate": None} if node.kind == "train" else {}
        key = f"{node.kind} {sorted(fields.items(), key=str)}"
        if node.id in todo and key not in known:
            known[key] = _cost(node.kind, fields)
        estimates.append((node, known[key] if node.id in todo else None))
    return estimates


def total(estimates: Estimates) -> str:
    """The total, with what it assumes."""
    hours = [cost.hours for node, cost in estimates if cost is not None and node.kind != "board"]
    if not hours:
        return "all nodes are done"
    unknown = f"; those of {hours.count(None)} nodes are unknown" if None in hours else ""
    return (
        f"nodes to do: {len(hours)}, {sum(value or 0 for value in hours):,.2f} GPU hours{unknown}\n"
        "not counted: imports, loading, reading data, scoring, the optimizer and saving, some seconds a node\n"
        f"assumed for GPU hours: {GPUS['H100'].text}; rows that stop early make evaluations cheaper"
    )


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
    runs = plan(fields)
    if here(str(fields["model"])) is not None:
        model = find(str(fields["model"]), fields.get("family"))
        forwards = sum(most_forwards(model, run.fields) for run in runs)
        return NodeCost(f"at most {forwards:,} forwards (dare-bench eval --dry-run times some)")
    if unknown := [run.name or fields.get("tasks") for run in runs if run.recipe is None]:
        return NodeCost(f"unknown: the checkpoint is not on this machine, and {unknown[0]} is not a recipe")
    most = [recipe.estimate(run.recipe, run.fields) for run in runs if run.recipe is not None]
    forwards, hours = sum(each.forwards for each in most), sum(each.hours for each in most)
    return NodeCost(f"at most {forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe)", hours)


def _training(settings: Mapping[str, Any]) -> NodeCost:
    """The operations of a training, and its time on a GPU."""
    step = training.estimate(train_spec(**settings, output_path="-"))
    flop = step.steps * sum(cost.flop for cost in step.phases.values())
    hours = step.steps * sum(step.seconds.values()) / 3600
    return NodeCost(f"{step.steps:,} steps of {step.about}; {flop:.3g} operations, {hours:,.2f} GPU hours", hours)
