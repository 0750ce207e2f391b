"""``dare_bench.sweep``: run the graph of a sweep through an executor; the same call resumes it."""

from __future__ import annotations

import contextlib
import io
import pkgutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from dare_bench.config import run_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.plan import plan
from dare_bench.errors import CheckpointError, DareError, DecodingError, UnknownNameError, UsageError, in_one_line
from dare_bench.executors import executor as executor_of
from dare_bench.executors.graph import dependents
from dare_bench.executors.graph import work as run_job
from dare_bench.formatting import duration
from dare_bench.loading import here
from dare_bench.protocols import Done, Job
from dare_bench.registry import registry
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import atomic_write_json, held, refuse_other_files, remove_leftovers
from dare_bench.sweeps.job import Ended, NodeJob, work
from dare_bench.sweeps.record import Record, content_of, folder, is_done, read, write
from dare_bench.sweeps.sweep_graph import BOARD, SweepNode, graph
from dare_bench.sweeps.sweep_spec import read_spec

FILE = "sweep.json"
"""In the folder of a sweep: its file as it was read last."""
_LOAD_BOARD = "dare_bench.leaderboards.board:load_board"
"""Imported by name, like the builder: sweeps must not import leaderboards."""


@dataclass(frozen=True)
class SweepResult:
    """The state of a sweep in its folder."""

    path: Path
    nodes: tuple[Record, ...]

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
        runs = {run.path: run for node in self.nodes for run in self.runs_of(node)}
        return tuple(runs.values())

    def runs_of(self, node: Record) -> Iterator[Run]:
        """The runs of an evaluation."""
        return (Run(self.path / "runs" / run.id) for run in node.runs)

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
        UsageError: an invalid file, invalid settings of the executor, or a folder with files of others.
        RunError: the folder is in use by another sweep.
    """
    spec = read_spec(source)
    out = Path(output_path).absolute()
    nodes = graph(spec)  # an invalid sweep is refused before anything is written
    refuse_other_files(out, (FILE,))
    refuse_unknown(nodes, pending(out, nodes, only_failed))
    with held(out, f"{out} is in use by another sweep; wait for it, or choose another --output-path"):
        atomic_write_json(out / FILE, spec.model_dump(mode="json"))
        for place in (folder(out, node.id) for node in nodes):
            if place.is_dir():
                remove_leftovers(place)
        todo = pending(out, nodes, only_failed)
        selected = {node.id: node for node in nodes if node.id in todo and node.kind != BOARD}
        settings = {} if device is None else {"device": device}
        jobs = [
            Job(name, NodeJob(out, node, settings, progress), tuple(n for n in node.after if n in selected))
            for name, node in selected.items()
        ]
        say = partial(print, file=sys.stderr if progress else io.StringIO(), flush=True)
        unchanged = f", {len(nodes) - len(todo)} unchanged" if len(todo) < len(nodes) else ""
        say(f"{len(todo)} nodes to do{unchanged}; logs are in {out / 'nodes'}/<node>/log.txt")
        if jobs:
            pool = executor_of(executor, workers=devices, device=device, address=ray_address)
            with contextlib.closing(pool.run(job, jobs)) as stream:
                for count, done in enumerate(stream, 1):
                    say(f"[{count}/{len(todo)}] {_ended(_store(out, selected[done.name], done))}")
        if BOARD in todo:
            say(f"[{len(todo)}/{len(todo)}] {_ended(_store(out, nodes[-1], _board(out, nodes[-1])))}")
    return SweepResult(out, tuple(read(out, node) for node in nodes))


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


def refuse_unknown(nodes: Iterable[SweepNode], selected: Collection[str]) -> None:
    """Refuse an unknown model (not bundled, not a folder, not of the form of a hub id; hubs are not contacted), task or
    board. Any other error is a failure of its node and does not stop the others.

    Args:
        selected: ids of the nodes to run.

    Raises:
        UsageError: the first unknown name, with the node that needs it.
    """
    checked: set[str] = set()
    for node in nodes:
        if node.id not in selected:
            continue
        settings = {name: value for name, value in node.settings.items() if name not in ("model", "adapter")}
        try:
            for name in ("model", "adapter"):
                if (checkpoint := node.settings.get(name)) is not None:
                    here(checkpoint)
            if node.kind == "board":
                pkgutil.resolve_name(_LOAD_BOARD)(settings["board"] if [*settings] == ["board"] else settings)
            elif node.kind == "train" and "task" in settings:
                registry().get("training_data", settings["task"])
            elif node.kind == "eval" and (key := repr(sorted(settings.items()))) not in checked:
                checked.add(key)
                _check_tasks(settings)
        except (CheckpointError, UsageError) as error:
            raise UsageError(f"{node.id}: {error}") from error


def _check_tasks(settings: dict[str, Any]) -> None:
    for run in plan({"model": "-", **settings}):
        spec = run_spec(**run.fields)
        try:
            checked_harness(spec)
        except (UnknownNameError, DecodingError):
            raise
        except (DareError, ImportError):  # the failure of a node, not an unknown name
            continue


def _store(out: Path, node: SweepNode, done: Done) -> Record:
    """Write how a node ended to its file."""
    record = read(out, node)
    if done.skipped is not None:
        record.status, record.error = "skipped", f"{done.skipped} did not succeed"
    else:
        ended = done.value or Ended(error="" if done.error is None else in_one_line(done.error))
        record.status, record.error, record.runs = "failed" if ended.error else "done", ended.error, ended.runs
        record.settings, record.where = node.settings, done.where
        record.started, record.seconds = time.time() - done.seconds, round(record.seconds + done.seconds, 3)
    write(out, record)
    return record


def _board(out: Path, node: SweepNode) -> Done:
    """Build the board in this process, from the runs that exist."""
    if not any((out / "runs").glob("*/results_*.json")):
        return Done(node.id, skipped="every evaluation")
    return run_job(work, Job(node.id, NodeJob(out, node, {}, progress=False)))


def _ended(record: Record) -> str:
    took = f" in {duration(record.seconds)}" if record.status != "skipped" else ""
    return f"{record.id}: {record.status}{took}" + (f": {record.error}" if record.error else "")
