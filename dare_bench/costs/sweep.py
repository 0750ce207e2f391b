"""What a sweep would cost (``--dry-run``), node by node. Nothing is trained and nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.costs.recipe import UTILIZATION, estimate
from dare_bench.costs.sizes import CheckpointSize, TrainingRows, rows_of, size_of, tokenizing
from dare_bench.costs.training import GPU, WorkCost, rows_trained_on, training_cost
from dare_bench.engine.plan import plan
from dare_bench.engine.preview import preview
from dare_bench.engine.progress import duration
from dare_bench.errors import DareError
from dare_bench.loading import load
from dare_bench.sweeps.graph import SweepNode, graph, settle
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.record import Record, names, read
from dare_bench.sweeps.run import chosen
from dare_bench.sweeps.spec import read_spec
from dare_bench.training.spec import TrainSpec, train_spec

SMALL = 100_000_000
"""Parameters up to which a checkpoint is opened for an estimate, and timed on a few samples."""


@dataclass
class SweepEstimates:
    """The graph of a sweep as it stands in its folder, with what its nodes that are not done would cost."""

    name: str
    out: Path
    nodes: list[SweepNode]
    records: dict[str, Record]
    done: set[str]
    costs: dict[str, WorkCost] = field(default_factory=dict)

    @classmethod
    def of(cls, source: str | Path | Mapping[str, Any], output_path: str | Path) -> SweepEstimates:
        """Estimate a sweep.

        Raises:
            UsageError: what the file has that cannot be, a name nobody knows. RunError: a node's file is damaged.
        """
        spec, out = read_spec(source), Path(output_path).absolute()
        nodes = settle(graph(spec), names(out))
        todo = chosen(out, nodes)
        refuse_unknown(nodes, todo)
        done = {node.id for node in nodes} - todo
        made = cls(spec.name, out, nodes, {node.id: read(out, node) for node in nodes}, done)
        made._fill()
        return made

    @property
    def notes(self) -> list[str]:
        """The sum, and what was assumed."""
        left = [self.costs[node.id] for node in self.nodes if node.id not in self.done and node.kind != "board"]
        known = [cost.seconds for cost in left if cost.seconds is not None]
        if not left:
            return ["everything is done; a run would do nothing"]
        more = f"; of {len(left) - len(known)} of them the time is not known" if len(known) < len(left) else ""
        total = f"nodes to do: {len(left)}, about {duration(sum(known))} on this machine, one after another{more}"
        return [
            total,
            "assumed: 6 N operations a token trained on (LoRA 4 N), twice for block-causal families; attention, the "
            "optimizer and loading left out; rows that stop early make evaluations cheaper",
            f"assumed: {GPU.name} at {UTILIZATION:.0%} of its peak where GPU hours stand",
        ]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
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

    def _fill(self) -> None:
        self._sizes: dict[str, CheckpointSize] = {}
        self._read: dict[str, TrainingRows] = {}
        self._evals: dict[str, WorkCost] = {}
        for kind in ("eval", "train", "board"):  # evaluations first: they time the networks
            for node in self.nodes:
                if node.kind == kind:
                    self.costs[node.id] = self._cost(node)

    def _cost(self, node: SweepNode) -> WorkCost:
        if node.id in self.done:
            return WorkCost("done", seconds=0.0)
        if node.kind == "board":
            return WorkCost("seconds", seconds=0.0)
        try:
            return self._train(node) if node.kind == "train" else self._eval(node)
        except DareError as error:
            return WorkCost(f"cannot be estimated: {error}")

    # -- evaluations ---------------------------------------------------------------------------------------------

    def _base(self, node: SweepNode) -> dict[str, Any]:
        """How the checkpoint is opened that a node starts from: a trained one is as large as its base."""
        start = next(n for n in self.nodes if n.id == node.of) if node.of is not None else node
        return {name: start.asked[name] for name in _OPENING if name in start.asked}

    def _fields(self, node: SweepNode) -> dict[str, Any]:
        return {**{k: v for k, v in node.asked.items() if k not in _OPENING}, **self._base(node)}

    def _eval(self, node: SweepNode) -> WorkCost:
        fields = self._fields(node)
        took = [self.records[n.id].cost.get("seconds") for n in self.nodes if n.kind == "eval" and n.id in self.done
                and self._fields(n) == fields]  # fmt: skip
        if known := [seconds for seconds in took if seconds]:
            seconds = sum(known) / len(known)
            return WorkCost(f"{duration(seconds)} (as measured here)", seconds=seconds)
        mark = repr(sorted(fields.items(), key=str))
        if mark not in self._evals:
            self._evals[mark] = self._evaluation(fields)
        return self._evals[mark]

    def _evaluation(self, fields: dict[str, Any]) -> WorkCost:
        size = self._size(fields)
        if _small(size):
            return self._timed(fields, size)
        forwards, hours, unknown = 0, 0.0, []
        for one in plan(fields):
            if one.recipe is None:
                unknown.append(one.name or str(fields.get("tasks")))
                continue
            seen = estimate(one.recipe, one.fields).expected
            forwards, hours = forwards + seen.forwards, hours + seen.hours
        if unknown:
            return WorkCost(
                f"not known without opening the checkpoint (dare-bench eval --dry-run times it): {unknown[0]}"
            )
        return WorkCost(f"{forwards:,} forwards, {hours:,.1f} GPU hours (from the recipe's facts)", forwards)

    def _timed(self, fields: dict[str, Any], size: CheckpointSize) -> WorkCost:
        forwards, seconds, requests, refused = 0, 0.0, 0, []
        for one in plan(fields):
            try:
                seen = preview(**{**one.fields, "output_path": str(self.out / "runs")})
            except DareError as error:
                refused.append(f"{one.name}: {error}" if one.name else str(error))
                continue
            forwards, seconds = forwards + seen.forwards, seconds + (seen.timing.seconds or 0.0)
            requests += sum(seen.requests.values())
        if refused and not requests:
            return WorkCost(f"cannot be run: {refused[0]}")
        if forwards:
            size.seconds_per_forward = seconds / forwards
        also = f"; {len(refused)} cannot be run: {refused[0]}" if refused else ""
        most = f"{requests:,} requests, at most {forwards:,} forwards"
        text = f"{most}, {duration(seconds)} (from samples answered now){also}"
        return WorkCost(text, forwards, seconds=seconds)

    # -- trainings -----------------------------------------------------------------------------------------------

    def _train(self, node: SweepNode) -> WorkCost:
        spec = train_spec(**node.asked, output_path="-")
        return training_cost(spec, self._rows(spec), self._size(node.asked), self._measured(spec))

    def _measured(self, spec: TrainSpec) -> float | None:
        """Seconds for each row of a step, by the trainings of this checkpoint that are done in this folder."""
        rates = []
        for node in self.nodes:
            took = self.records[node.id].cost.get("seconds")
            if node.kind == "train" and node.id in self.done and node.asked["model"] == spec.model and took:
                other = train_spec(**node.asked, output_path="-")
                rates.append(took / rows_trained_on(other, self._rows(other)))
        return sum(rates) / len(rates) if rates else None

    def _rows(self, spec: TrainSpec) -> TrainingRows:
        """Read once for each source, however many trainings learn from it."""
        size = self._size({"model": spec.model, "family": spec.family})
        size.model = size.model or tokenizing(spec.model, spec.family)
        asked = [spec.data, spec.split, spec.task, spec.rows, spec.max_length, spec.overlong, spec.max_steps is None]
        mark = repr([spec.model, spec.method, *asked])
        if mark not in self._read:
            self._read[mark] = rows_of(spec, size.model)
        return self._read[mark]

    def _size(self, base: Mapping[str, Any]) -> CheckpointSize:
        model = str(base["model"])
        if model not in self._sizes:
            size = self._sizes[model] = size_of(model, base.get("family"))
            if _small(size):
                size.model = load(model, family=base.get("family"), device="cpu").loaded
        return self._sizes[model]


def _small(size: CheckpointSize) -> bool:
    return size.parameters is not None and size.parameters <= SMALL


_OPENING = ("model", "adapter", "family", "model_args", "dtype")
