"""The estimated cost of a sweep (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from dare_bench.costs.recipe import UTILIZATION, estimate
from dare_bench.costs.sizes import CheckpointSize, TrainingRows, rows_of, size_of, tokenizing
from dare_bench.costs.training import GPU, WorkCost, training_cost
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import preview
from dare_bench.engine.progress import duration
from dare_bench.errors import DareError, UsageError
from dare_bench.loading import load
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.record import Record, names, read
from dare_bench.sweeps.run import pending
from dare_bench.sweeps.sweep_graph import SweepNode, graph, settle
from dare_bench.sweeps.sweep_spec import read_spec
from dare_bench.training.spec import TrainSpec, train_spec

SMALL = 100_000_000
"""Maximum number of parameters of a checkpoint that is loaded for an estimate, and timed on a few samples."""
_LOADING = ("model", "adapter", "family", "model_args", "dtype")
"""Settings that load a checkpoint."""


@dataclass
class SweepEstimates:
    """The graph of a sweep in its folder, with the estimated costs of the nodes that are not done."""

    name: str
    out: Path
    nodes: list[SweepNode]
    records: dict[str, Record]
    done: set[str]
    costs: dict[str, WorkCost] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Nodes that would fail, with the error of their settings."""

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
        estimates = cls(spec.name, out, nodes, {node.id: read(out, node) for node in nodes}, done)
        for kind in ("eval", "train", "board"):  # evaluations first: they time the networks
            for node in nodes:
                if node.kind == kind:
                    estimates.costs[node.id] = estimates._cost(node)
        return estimates

    def __post_init__(self) -> None:
        self._sizes: dict[str, CheckpointSize] = {}
        self._training_rows: dict[str, TrainingRows] = {}
        self._evaluations: dict[str, WorkCost] = {}

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
            "not counted, unless a node was measured here: imports, loading, reading data, scoring and saving, which "
            "take some seconds a node, most of the time of a short sweep",
            "assumed: 6 N operations per trained token (LoRA 4 N), twice for block-causal families, without attention "
            "and optimizer; rows that stop early make evaluations cheaper",
            f"assumed for GPU hours: {GPU.name} at {UTILIZATION:.0%} of its peak",
        ]

    def plain(self) -> dict[str, Any]:
        """The JSON record."""
        nodes = [
            {
                "id": node.id,
                "kind": node.kind,
                "after": list(node.after),
                "status": self.records[node.id].status,
                "done": node.id in self.done,
                **asdict(self.costs[node.id]),
            }
            for node in self.nodes
        ]
        return {"name": self.name, "path": str(self.out), "nodes": nodes, "notes": self.notes}

    def _cost(self, node: SweepNode) -> WorkCost:
        if node.id in self.done:
            return WorkCost("done", seconds=0.0)
        if node.kind == "board":
            return WorkCost("a few seconds", seconds=0.0)
        try:
            return self._train(node) if node.kind == "train" else self._eval(node)
        except UsageError as error:
            self.refused[node.id] = str(error)
            return WorkCost(f"would fail: {error}")
        except DareError as error:
            return WorkCost(f"cannot be estimated: {error}")

    def _fields(self, node: SweepNode) -> dict[str, Any]:
        """The settings of an evaluation with its base model: a trained checkpoint has the size of its base."""
        start = next(n for n in self.nodes if n.id == node.training) if node.training is not None else node
        settings = {name: value for name, value in node.settings.items() if name not in _LOADING}
        return settings | {name: start.settings[name] for name in _LOADING if name in start.settings}

    def _measured(self, kind: str) -> Iterator[tuple[SweepNode, float]]:
        """The nodes that are done, with their seconds."""
        for node in self.nodes:
            seconds = self.records[node.id].cost.get("seconds")
            if node.kind == kind and node.id in self.done and seconds:
                yield node, seconds

    def _eval(self, node: SweepNode) -> WorkCost:
        fields = self._fields(node)
        if measured := [seconds for other, seconds in self._measured("eval") if self._fields(other) == fields]:
            return WorkCost(f"{duration(mean(measured))} (as measured here)", seconds=mean(measured))
        key = repr(sorted(fields.items(), key=str))
        if key not in self._evaluations:
            self._evaluations[key] = self._evaluation(fields)
        return self._evaluations[key]

    def _evaluation(self, fields: dict[str, Any]) -> WorkCost:
        size = self._size(fields)
        if size.parameters is not None and size.parameters <= SMALL:
            return self._timed(fields, size)
        forwards, hours = 0, 0.0
        for run in plan(fields):
            if run.recipe is None:
                name = run.name or fields.get("tasks")
                return WorkCost(f"unknown without loading the checkpoint (dare-bench eval --dry-run times it): {name}")
            expected = estimate(run.recipe, run.fields).expected
            forwards, hours = forwards + expected.forwards, hours + expected.hours
        return WorkCost(f"{forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe's facts)", forwards)

    def _timed(self, fields: dict[str, Any], size: CheckpointSize) -> WorkCost:
        forwards, seconds, requests, refused = 0, 0.0, 0, []
        for run in plan(fields):
            try:
                result = preview(**{**run.fields, "output_path": str(self.out / "runs")})
            except DareError as error:
                refused.append(f"{run.name}: {error}" if run.name else str(error))
                continue
            forwards, seconds = forwards + result.forwards, seconds + (result.timing.seconds or 0.0)
            requests += sum(result.requests.values())
        if refused and not requests:
            return WorkCost(f"cannot be run: {refused[0]}")
        if forwards:
            size.seconds_per_forward = seconds / forwards
        failed = f"; {len(refused)} cannot be run: {refused[0]}" if refused else ""
        bound = f"{requests:,} requests, at most {forwards:,} forwards"
        return WorkCost(f"{bound}, {duration(seconds)} (from timed samples){failed}", forwards, seconds=seconds)

    def _train(self, node: SweepNode) -> WorkCost:
        spec, size = train_spec(**node.settings, output_path="-"), self._size(node.settings)
        rates = []
        for other, seconds in self._measured("train"):
            if other.settings["model"] == spec.model:
                other_spec = train_spec(**other.settings, output_path="-")
                if flop := training_cost(other_spec, self._rows(other_spec), size).flop:
                    rates.append(seconds / flop)
        return training_cost(spec, self._rows(spec), size, mean(rates) if rates else None)

    def _rows(self, spec: TrainSpec) -> TrainingRows:
        """The rows of a training; the same rows are read only once."""
        size = self._size({"model": spec.model, "family": spec.family})
        size.model = size.model or tokenizing(spec.model, spec.family)
        source = [spec.data, spec.split, spec.task, spec.rows, spec.max_length, spec.overlong, spec.max_steps is None]
        division = [spec.gradient_accumulation_steps, spec.looks_per_forward, spec.peft]  # of an update into forwards
        key = repr([spec.model, spec.method, *source, *division, sorted(spec.options.items())])
        if key not in self._training_rows:
            self._training_rows[key] = rows_of(spec, size.model)
        return self._training_rows[key]

    def _size(self, settings: Mapping[str, Any]) -> CheckpointSize:
        model = str(settings["model"])
        if model not in self._sizes:
            size = self._sizes[model] = size_of(model, settings.get("family"))
            if size.parameters is not None and size.parameters <= SMALL:
                size.model = load(model, family=settings.get("family"), device="cpu").loaded
        return self._sizes[model]
