"""``dare_bench.sweep``: do the graph of a sweep through an executor; the same call goes on wherever it was stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_bench.executors import executor as executor_of
from dare_bench.executors.graph import dependents
from dare_bench.protocols import Done, Job
from dare_bench.runs.reader import Run
from dare_bench.runs.writer import held, remove_leftovers
from dare_bench.sweeps import record as records
from dare_bench.sweeps.graph import BOARD, SweepNode, graph, settle
from dare_bench.sweeps.handlers import BUILDER, Builder, board
from dare_bench.sweeps.job import UNCHANGED, payload, perform, work
from dare_bench.sweeps.known import refuse_unknown
from dare_bench.sweeps.progress import SweepProgress
from dare_bench.sweeps.record import Record, error_text, is_done, read, write
from dare_bench.sweeps.spec import read_spec


@dataclass(frozen=True)
class SweepResult:
    """A sweep as it stands in its folder. ``unnamed``: nodes there that the file does not name any more."""

    path: Path
    nodes: tuple[Record, ...]
    unnamed: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return all(node.status == "done" for node in self.nodes)

    @property
    def failed(self) -> tuple[Record, ...]:
        """Nodes that failed, and those that could not be begun because of them."""
        return tuple(node for node in self.nodes if node.status in ("failed", "skipped"))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """The runs of all evaluations, in the order of the graph, each once."""
        names = dict.fromkeys(run["id"] for node in self.nodes for run in node.outputs.get("runs", ()))
        return tuple(Run(self.path / "runs" / name) for name in names)

    @property
    def site(self) -> Path | None:
        """The board's first page, where there is one."""
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
    build_board: Builder | str = BUILDER,
    job: Callable[[Any], Any] = work,
) -> SweepResult:
    """Train, evaluate and show what a sweep's file names.

    A node that is done is left alone as long as what was asked and what it was made from are the same; all others are
    done, each where it was stopped. What fails keeps only what depends on it from being done.

    Args:
        source: the YAML file, or its content as a mapping (docs/sweeps.md).
        output_path: folder of the sweep: ``train/``, ``runs/``, ``site/``, ``nodes/`` (state, logs, costs).
        only_failed: do failed nodes, and what depends on them, alone.
        executor: ``local``, ``devices`` or ``ray``; ``devices``: jobs at a time; ``device``: ``cpu`` uses no GPU;
            ``ray_address``: of a cluster (see ``dare_bench.executors.executor``).
        progress: tell on stderr what begins and ends.
        build_board: the site builder, or its ``module:attribute``.
        job: what does a training or evaluation node; it must be importable where the executor works.

    Raises:
        UsageError: the file or the executor's words. RunError: the folder is in use, or another sweep's.
    """
    spec = read_spec(source)
    out = Path(output_path).absolute()
    nodes = graph(spec)  # an impossible sweep is refused before anything is written
    settled = settle(nodes, records.names(out))
    refuse_unknown(settled, chosen(out, settled, only_failed))
    with held(out, f"{out} is in use by another sweep; wait for it, or choose another --output-path"):
        records.claim(out, spec.name, spec.model_dump(mode="json"))
        nodes = settle(nodes, records.names(out))
        unnamed = tuple(name for name in records.known(out) if name not in {node.id for node in nodes})
        _settle_stopped(out, nodes)
        todo = chosen(out, nodes, only_failed)
        view = SweepProgress(out, nodes, todo, progress, 1)
        view.begin(unnamed)
        try:
            jobs = _jobs(out, [node for node in nodes if node.id in todo and node.kind != BOARD], device)
            if jobs:
                where = executor_of(executor, workers=devices, device=device, address=ray_address)
                view.workers = min(where.workers, len(jobs))
                with contextlib.closing(_stream(where.run(job, jobs))) as stream:
                    for done in stream:
                        view.ended(_note(out, nodes, done), unchanged=done.value == UNCHANGED)
            if BOARD in todo:
                view.ended(_board(out, nodes[-1], build_board))
        finally:
            view.close()
            _settle_stopped(out, nodes)
    return result(out, nodes, unnamed)


def result(out: Path, nodes: Sequence[SweepNode], unnamed: Sequence[str] = ()) -> SweepResult:
    """What the folder says of these nodes."""
    return SweepResult(out, tuple(read(out, node) for node in nodes), tuple(unnamed))


def chosen(out: Path, nodes: Sequence[SweepNode], only_failed: bool = False) -> set[str]:
    """The ids of the nodes to be done now: those that are not done, and what depends on them."""
    after = {node.id: node.after for node in nodes}
    fresh = {node.id for node in nodes if not is_done(out, node)}
    if not only_failed:
        return dependents(after, fresh)
    failed = {node.id for node in nodes if read(out, node).status in ("failed", "skipped")}
    todo = dependents(after, failed)
    # The board shows whatever there is: it waits for nothing.
    needed = {name for node in nodes if node.id in todo and node.kind != BOARD for name in node.after}
    return todo | (needed & fresh)


def _jobs(out: Path, nodes: Sequence[SweepNode], device: str | None) -> list[Job]:
    """A job for each of these nodes, after those of them that it needs."""
    names = {node.id for node in nodes}
    return [Job(n.id, payload(out, n, device), tuple(name for name in n.after if name in names)) for n in nodes]


def _note(out: Path, nodes: Sequence[SweepNode], done: Done) -> Record:
    """What became of a job, in its node's file: a job whose worker died could not write it itself."""
    record = read(out, next(node for node in nodes if node.id == done.name))
    if done.skipped is not None:
        record.status, record.error = "skipped", f"{done.skipped} did not succeed"
        write(out, record)
    elif done.error is not None and record.status != "failed":
        record.status, record.error = "failed", error_text(done.error)
        if record.attempts and record.attempts[-1].seconds is None:
            record.attempts[-1].error = record.error
        write(out, record)
    return record


def _board(out: Path, node: SweepNode, builder: Builder | str) -> Record:
    """Build the board here, from the evaluations that there are; a failure is the node's."""
    if not any((out / "runs").glob("*/results_*.json")):
        record = read(out, node)
        record.status, record.error = "skipped", "there is no run to show"
        write(out, record)
        return record
    with contextlib.suppress(Exception):  # it is in the node's file and log
        perform(payload(out, node, None), {"board": board(builder)})
    return read(out, node)


def _settle_stopped(out: Path, nodes: Sequence[SweepNode]) -> None:
    """Give every node a file; one that says "running" though nobody runs it was interrupted."""
    for node in nodes:
        record = read(out, node)
        if record.attempts:
            remove_leftovers(records.folder(out, node.id))
        if record.status == "running":
            record.status, record.error = "pending", records.INTERRUPTED
            write(out, record)
        elif not record.attempts and record.status == "pending":
            write(out, record)


def _stream(results: Iterator[Done]) -> Generator[Done, None, None]:
    """The executor's iterator as a generator: closing it closes that one."""
    yield from results
