"""A Ray cluster: every job is a task whose arguments are its predecessors, so Ray schedules the graph.

Jobs of a node that dies run again on another (``max_retries``); results are small and stored by the driver, so none is
lost with a node or computed twice. The nodes share a file system, and jobs run in the driver's working directory.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

from dare_bench.errors import DareError, UsageError
from dare_bench.executors.graph import Graph, work
from dare_bench.protocols import Done, Job
from dare_bench.safe_path import safe_path

LOCAL = "local"
RETRIES = 3
STORE_BYTES = 128 * 2**20
"""Size of Ray's object store on this machine, which only has to hold paths and counts."""


class Ray:
    """Runs jobs on a Ray cluster: the connected one, the one at an address, or a new local one.

    Args:
        workers: number of concurrent jobs; 1 means as many as the cluster has GPUs, else CPUs.
        device: ``cpu`` requests no GPU even if there are some.
        address: ``host:port``, ``auto``, ``local``; None: ``RAY_ADDRESS``, else ``local``.

    Raises:
        UsageError: Ray is not installed, or nothing answers at the address.
    """

    def __init__(self, *, workers: int = 1, device: str | None = None, address: str | None = None) -> None:
        self.address = address or os.environ.get("RAY_ADDRESS") or LOCAL
        self._requested, self._started = workers, False
        self.ray = _import(self.address)
        self._connect()
        has = self.ray.cluster_resources()
        self._gpus = 1 if has.get("GPU", 0) >= 1 and (device or "cuda").startswith("cuda") else 0
        self.workers = workers if workers > 1 else max(1, int(has.get("GPU" if self._gpus else "CPU", 1)))

    def run(self, function: Callable[[Any], Any], jobs: Sequence[Job]) -> Generator[Done, None, None]:
        """See :meth:`dare_bench.protocols.Executor.run`."""
        graph = Graph(jobs)
        self._connect()
        refs: dict[str, Any] = {}
        results: dict[str, Done] = {}
        try:
            self._submit(function, graph, refs)
            names = {ref: name for name, ref in refs.items()}
            while waiting := [ref for name, ref in refs.items() if name not in results]:
                ready, _ = self.ray.wait(waiting, num_returns=1, timeout=1.0)
                for ref in ready:
                    yield from self._settle(names[ref], refs, graph.jobs, results)
        finally:
            for name, ref in refs.items() if self.ray.is_initialized() else ():  # any other call would start a cluster
                if name not in results:
                    with contextlib.suppress(Exception):
                        self.ray.cancel(ref, force=True)
            if self._started:
                self.ray.shutdown()
                self._started = False

    def _submit(self, function: Callable[[Any], Any], graph: Graph, refs: dict[str, Any]) -> None:
        """Submit every job to Ray after its predecessors; fills ``refs``."""
        needs = {"num_cpus": 1, "num_gpus": self._gpus, "max_retries": RETRIES, "retry_exceptions": False}
        remote = self.ray.remote(_task)
        while (job := graph.take()) is not None:
            before = [refs[name] for name in job.after]
            refs[job.name] = remote.options(name=job.name, **needs).remote(function, job, str(Path.cwd()), *before)
            graph.finish(Done(job.name))

    def _settle(
        self, name: str, refs: dict[str, Any], jobs: dict[str, Job], results: dict[str, Done]
    ) -> Iterator[Done]:
        """The result of a finished job, after those of its predecessors, which must have finished too."""
        if name in results:
            return
        for earlier in jobs[name].after:
            yield from self._settle(earlier, refs, jobs, results)
        try:
            results[name] = self.ray.get(refs[name])
        except self.ray.exceptions.RayError as error:
            failed = next((earlier for earlier in jobs[name].after if not results[earlier].ok), None)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # Ray colors its messages
            lost = DareError(f"{name}: Ray could not finish it: {' '.join(plain.split())[:500]}")
            results[name] = Done(name, skipped=failed) if failed is not None else Done(name, error=lost)
        yield results[name]

    def _connect(self) -> None:
        """Connect unless connected; the address ``local`` starts a cluster on this machine."""
        if self.ray.is_initialized():
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.address == LOCAL:
            options |= {
                "num_cpus": self._requested if self._requested > 1 else None,
                "object_store_memory": STORE_BYTES,
            }
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        try:
            # Ray puts the driver's folder first on the workers' search path: a re.py there would be executed.
            with safe_path(), contextlib.chdir("/"):
                self.ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"no Ray cluster at {self.address!r} ({' '.join(str(error).split())[:200]}); start one (ray start"
                " --head), give its host:port, or 'local' for a cluster on this machine"
            ) from error
        self._started = True


def _task(function: Callable[[Any], Any], job: Job, folder: str, *before: Done) -> Done:
    """Run a job on a node unless a predecessor failed."""
    for earlier in before:
        if not earlier.ok:
            return Done(job.name, skipped=earlier.name)
    try:
        os.chdir(folder)
    except OSError as error:
        where = f"the driver's folder {folder} is not on this node ({error.strerror})"
        return Done(job.name, error=DareError(f"{where}; Ray jobs need a file system that all nodes share"))
    return work(function, job)


def _import(address: str) -> Any:
    """Ray, configured before its import to send no usage statistics and to keep a local cluster on this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address == LOCAL:
        # Otherwise Ray replaces 127.0.0.1 by an address that other machines can reach.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        if error.name != "ray":
            raise
        raise UsageError("the executor 'ray' needs Ray: pip install 'dare-bench[cluster]'") from error
    return ray
