"""``dare_bench.sweep``: run the graph of a sweep through an executor; the same call resumes it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import in_one_line
from dare_bench.executors import executor as executor_of
from dare_bench.executors.graph import dependents
from dare_bench.executors.graph import work as run_job
from dare_bench.formatting import duration
from dare_bench.protocols import Done, Job
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held, remove_leftovers
from dare_bench.sweeps import record as records
from dare_bench.sweeps.handlers import Ended
from dare_bench.sweeps.job import NodeJob, work
from dare_bench.sweeps.known import refuse_unknown
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
        for place in (records.folder(out, node.id) for node in nodes):
            if place.is_dir():
                remove_leftovers(place)
        todo = pending(out, nodes, only_failed)
        selected = {node.id: node for node in nodes if node.id in todo and node.kind != BOARD}
        settings = {} if device is None else {"device": device}
        jobs = [
            Job(name, NodeJob(out, node, settings, progress), tuple(n for n in node.after if n in selected))
            for name, node in selected.items()
        ]
        view = _Progress(len(todo), progress)
        unchanged = f", {len(nodes) - len(todo)} unchanged" if len(todo) < len(nodes) else ""
        view.say(f"{len(todo)} nodes to do{unchanged}; logs are in {out / 'nodes'}/<node>/log.txt")
        for name in unnamed:
            view.say(f"{name}: no longer in the file; its results are kept")
        if jobs:
            pool = executor_of(executor, workers=devices, device=device, address=ray_address)
            with contextlib.closing(pool.run(job, jobs)) as stream:
                for done in stream:
                    view.end(_store(out, selected[done.name], done))
        if BOARD in todo:
            view.end(_store(out, nodes[-1], _board(out, nodes[-1])))
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
    """Write how a node ended to its file."""
    record = read(out, node)
    if done.skipped is not None:
        record.status, record.error = "skipped", f"{done.skipped} did not succeed"
    else:
        ended = done.value or Ended(error="" if done.error is None else in_one_line(done.error))
        record.status, record.error, record.runs = "failed" if ended.error else "done", ended.error, ended.runs
        record.settings, record.after, record.where = node.settings, node.after, done.where
        record.started, record.seconds = time.time() - done.seconds, round(record.seconds + done.seconds, 3)
    write(out, record)
    return record


def _board(out: Path, node: SweepNode) -> Done:
    """Build the board in this process, from the runs that exist."""
    if not any((out / "runs").glob("*/results_*.json")):
        return Done(node.id, skipped="every evaluation")
    return run_job(work, Job(node.id, NodeJob(out, node, {}, progress=False)))


class _Progress:
    """Prints the end of each of ``total`` nodes on stderr, if ``show``. A node's process says that it starts."""

    def __init__(self, total: int, show: bool) -> None:
        self.total, self.ended, self.failed, self.started = total, 0, 0, time.monotonic()
        self.stream = sys.stderr if show else None  # the stderr of a node goes into its log

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)

    def end(self, record: Record) -> None:
        self.ended += 1
        self.failed += record.status != "done"
        took = f" in {duration(record.seconds)}" if record.status != "skipped" else ""
        reason = f": {record.error}" if record.error else ""
        failed = f"; {self.failed} failed or skipped" if self.failed else ""
        seconds = (time.monotonic() - self.started) / self.ended * (self.total - self.ended)
        left = f"; about {duration(seconds)} left" if seconds else ""
        self.say(f"[{self.ended}/{self.total}] {record.id}: {record.status}{took}{reason}{failed}{left}")
