"""``dare_bench.sweep``: run the graph of a sweep through an executor; the same call resumes it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import in_one_line
from dare_bench.executors import executor as executor_of
from dare_bench.executors.graph import dependents
from dare_bench.protocols import Done, Job
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held, remove_leftovers
from dare_bench.sweeps import record as records
from dare_bench.sweeps.job import NodeJob, work
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.node_progress import SweepProgress
from dare_bench.sweeps.record import Record, content_of, is_done, read, write
from dare_bench.sweeps.sweep_graph import BOARD, SweepNode, graph
from dare_bench.sweeps.sweep_spec import read_spec


@dataclass(frozen=True)
class SweepResult:
    """The state of a sweep in its folder. ``unnamed``: nodes in the folder that are no longer in the file."""

    path: Path
    nodes: tuple[Record, ...]
    unnamed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return all(node.status == "done" for node in self.nodes)

    @property
    def failed(self) -> tuple[Record, ...]:
        """Nodes that failed, and those that were skipped because of them."""
        return tuple(node for node in self.nodes if node.status in ("failed", "skipped"))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all evaluations, in the order of the graph, without duplicates."""
        names = dict.fromkeys(run.id for node in self.nodes for run in node.runs)
        return tuple(Run(self.path / "runs" / name) for name in names)

    @property
    def site(self) -> Path | None:
        """The first page of the board, if there is one."""
        page = self.path / "site" / "index.html"
        return page if page.is_file() else None


def sweep(
    source: str | Path | Mapping[str, Any],
    *,
    output_path: str | Path,
    only_failed: bool = False,
    executor: str = "local",
    devices: int = 1,
    device: str | None = None,
    ray_address: str | None = None,
    progress: bool = True,
    job: Callable[[Any], Any] = work,
) -> SweepResult:
    """Train and evaluate a grid, and build a board.

    A finished node is run again only if its settings or inputs have changed; an interrupted node is resumed. A failure
    stops only the nodes that depend on it.

    Args:
        source: the YAML file, or its content as a mapping (docs/sweeps.md).
        output_path: folder of the sweep: ``train/``, ``runs/``, ``site/``, ``nodes/`` (state, logs, costs).
        only_failed: run only failed nodes and the nodes that depend on them.
        executor: ``local``, ``devices`` or ``ray``; ``devices``: number of parallel jobs; ``device``: ``cpu`` uses no
            GPU; ``ray_address``: of a cluster (see ``dare_bench.executors.executor``).
        progress: print the start and end of nodes on stderr.
        job: runs a training or evaluation node; must be importable in the processes of the executor.

    Raises:
        UsageError: an invalid file, or invalid settings of the executor.
        RunError: the folder is in use, or another sweep's.
    """
    spec = read_spec(source)
    out = Path(output_path).absolute()
    nodes = graph(spec)  # an invalid sweep is refused before anything is written
    records.refuse_foreign(out, spec.name)
    refuse_unknown(nodes, pending(out, nodes, only_failed))
    with held(out, f"{out} is in use by another sweep; wait for it, or choose another --output-path"):
        records.claim(out, spec.name, spec.model_dump(mode="json"))
        unnamed = tuple(name for name in records.recorded(out) if name not in {node.id for node in nodes})
        _reset_interrupted(out, nodes)
        todo = pending(out, nodes, only_failed)
        selected = {node.id: node for node in nodes if node.id in todo and node.kind != BOARD}
        settings = {} if device is None else {"device": device}
        jobs = [
            Job(name, NodeJob(out, node, settings, progress), tuple(n for n in node.after if n in selected))
            for name, node in selected.items()
        ]
        view = SweepProgress(len(todo), progress)
        unchanged = f", {len(nodes) - len(todo)} unchanged" if len(todo) < len(nodes) else ""
        view.say(f"{len(todo)} nodes to do{unchanged}; logs are in {out / 'nodes'}/<node>/log.txt")
        for name in unnamed:
            view.say(f"{name}: no longer in the file; its results are kept")
        try:
            if jobs:
                pool = executor_of(executor, workers=devices, device=device, address=ray_address)
                with contextlib.closing(pool.run(job, jobs)) as stream:
                    for done in stream:
                        view.end(_store(out, selected[done.name], done))
            if BOARD in todo:
                view.end(_board(out, nodes[-1]))
        finally:
            _reset_interrupted(out, nodes)
    return SweepResult(out, tuple(read(out, node) for node in nodes), unnamed)


def pending(out: Path, nodes: Sequence[SweepNode], only_failed: bool = False) -> set[str]:
    """The ids of the nodes to run: those that are not done, and those that depend on them."""
    after = {node.id: node.after for node in nodes}
    content = cache(content_of)
    not_done = {node.id for node in nodes if not is_done(out, node, content)}
    if not only_failed:
        return dependents(after, not_done)
    todo = dependents(after, {node.id for node in nodes if read(out, node).status in ("failed", "skipped")})
    # The board shows the runs that exist: it does not need the others.
    needed = {name for node in nodes if node.id in todo and node.kind != BOARD for name in node.after}
    return todo | (needed & not_done)


def _store(out: Path, node: SweepNode, done: Done) -> Record:
    """Write the result of a job to the file of its node: a job whose worker died could not do it."""
    record = read(out, node)
    if done.skipped is not None:
        record.status, record.error = "skipped", f"{done.skipped} did not succeed"
        write(out, record)
    elif done.error is not None and record.status != "failed":
        record.status, record.error = "failed", in_one_line(done.error)
        write(out, record)
    return record


def _board(out: Path, node: SweepNode) -> Record:
    """Build the board in this process, from the runs that exist; its failure is recorded."""
    if not any((out / "runs").glob("*/results_*.json")):
        record = read(out, node)
        record.status, record.error = "skipped", "no run to show"
        write(out, record)
        return record
    with contextlib.suppress(Exception):  # recorded in the node's file and log
        work(NodeJob(out, node, {}, progress=False))
    return read(out, node)


def _reset_interrupted(out: Path, nodes: Sequence[SweepNode]) -> None:
    """A node that is marked as running was interrupted and becomes pending."""
    for node in nodes:
        record = read(out, node)
        if record.starts:
            remove_leftovers(records.folder(out, node.id))
        if record.status == "running":
            record.status, record.error = "pending", records.INTERRUPTED
            write(out, record)
