"""Executors: the order of jobs, failures that stay alone, workers that die, parents that die; and Ray, on this
machine alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import executor_jobs
import pytest
import sweep_jobs
import toy_source
from executor_jobs import alive, pid, play, told, until
from require import need_package
from slow_answers import answer_slowly

from dare_bench.engine import sharding
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import unpack
from dare_bench.errors import DareError, DataError, UnknownNameError, UsageError
from dare_bench.executors import cluster, executor
from dare_bench.executors.devices import Devices
from dare_bench.executors.graph import Graph
from dare_bench.protocols import Done, Executor, Job
from dare_bench.runs.reader import Run
from dare_bench.sweeps.run import sweep

BOTH = ("local", "devices")


def job(folder: Path, name: str, *after: str, **act: Any) -> Job:
    return Job(name, {"folder": str(folder), "name": name, **act}, after)


def ran(made: Executor, *jobs: Job) -> dict[str, Done]:
    result = list(made.run(play, jobs))
    assert len({done.name for done in result}) == len(result) == len(jobs), "one result a job"
    return {done.name: done for done in result}


@pytest.mark.parametrize("name", BOTH)
def test_jobs_run_behind_their_predecessors(tmp_path: Path, name: str) -> None:
    jobs = [job(tmp_path, "eval", "train", "data"), job(tmp_path, "train", "data"), job(tmp_path, "data")]
    result = ran(executor(name, workers=2, device="cpu"), *jobs)
    assert list(result) == told(tmp_path) == ["data", "train", "eval"]
    assert all(done.ok and done.value == done.name and done.seconds >= 0 for done in result.values())
    assert all("process" in done.where for done in result.values())


@pytest.mark.parametrize("name", BOTH)
def test_a_failure_stays_alone_and_skips_what_stands_on_it(tmp_path: Path, name: str) -> None:
    jobs = [
        job(tmp_path, "bad", act="fail"),
        job(tmp_path, "behind", "bad"),
        job(tmp_path, "far behind", "behind"),
        job(tmp_path, "odd", act="odd"),
        job(tmp_path, "good"),
        job(tmp_path, "behind good", "good"),
    ]
    result = ran(executor(name, workers=2, device="cpu"), *jobs)
    assert isinstance(result["bad"].error, DataError) and str(result["bad"].error) == "bad was told to fail"
    assert (result["behind"].skipped, result["far behind"].skipped) == ("bad", "behind")
    assert result["behind"].error is None and not result["behind"].ok
    assert str(result["odd"].error) == "Odd: one" and type(result["odd"].error) is DareError
    assert result["good"].ok and result["behind good"].ok
    assert sorted(told(tmp_path)) == ["bad", "behind good", "good", "odd"]


def test_jobs_that_cannot_be_ordered(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two jobs have the name 'a'"):
        Graph([Job("a"), Job("a")])
    with pytest.raises(ValueError, match="'a' comes after 'b', which is not one"):
        Graph([Job("a", after=("b",))])
    with pytest.raises(ValueError, match="wait for each other: a, b"):
        Graph([Job("a", after=("b",)), Job("b", after=("a",)), Job("c")])
    with pytest.raises(UnknownNameError, match="unknown executor 'rey'; closest: ray"):
        executor("rey")


def test_local_stops_at_ctrl_c(tmp_path: Path) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(executor("local").run(interrupted, [Job("a"), Job("b")]))


def test_workers_are_processes_that_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr("dare_bench.executors.devices._cores", lambda: 7)
    jobs = [job(tmp_path, str(i), act="tell", seconds=0.2) for i in range(4)]
    result = [done.value for done in ran(Devices(workers=2, device="cpu"), *jobs).values()]
    assert len({value["pid"] for value in result} - {os.getpid()}) == 2
    assert {value["threads"] for value in result} == {"3"}


def test_a_worker_runs_nothing_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a program of the user's, whose later processes find what they did before."""
    (tmp_path / "multiprocessing.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert ran(Devices(workers=1, device="cpu"), job(tmp_path, "one"))["one"].ok
    assert not Path("ran").exists() and "PYTHONSAFEPATH" not in os.environ


def test_a_dead_worker_costs_its_job_alone(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path, "killer", act="die"),
        job(tmp_path, "behind", "killer"),
        job(tmp_path, "unlucky", act="die once"),
        job(tmp_path, "long", seconds=1.5),
        job(tmp_path, "last"),
        job(tmp_path, "lambda", act="unpicklable"),
    ]
    result = ran(Devices(workers=2, device="cpu"), *jobs)
    assert "its worker process died 2 times" in str(result["killer"].error)
    assert result["behind"].skipped == "killer"
    assert result["unlucky"].ok and result["long"].ok and result["last"].ok
    assert "pickle" in str(result["lambda"].error)
    begun = told(tmp_path)
    assert [begun.count(name) for name in ("killer", "unlucky", "long", "last", "behind")] == [2, 2, 1, 1, 0]


def test_closing_ends_the_workers(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "first"), job(tmp_path, "endless", act="sleep")]
    running = Devices(workers=2, device="cpu").run(play, jobs)
    assert next(running).name == "first"
    worker = until(lambda: pid(tmp_path, "endless"))
    begin = time.monotonic()
    running.close()
    assert time.monotonic() - begin < 60 and not alive(worker)  # it would sleep for ten minutes


def _parent(folder: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background begins with it ignored
    jobs = [job(Path(folder), "endless", act="sleep")]
    try:
        list(Devices(workers=2, device="cpu").run(play, jobs))
    except KeyboardInterrupt:
        sys.exit(130)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    parent = multiprocessing.get_context("spawn").Process(target=_parent, args=(str(tmp_path),))
    parent.start()
    worker = until(lambda: pid(tmp_path, "endless"))
    assert alive(worker)
    os.kill(parent.pid or 0, number)
    parent.join(10)
    assert parent.exitcode == (130 if number == signal.SIGINT else -number)
    until(lambda: not alive(worker))


def test_gpus_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,7")
    assert Devices(workers=2).gpus == ["4", "6"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert Devices(workers=3, device="cuda").gpus == ["0", "1", "2"]
    assert Devices(workers=8, device="cpu").gpus == []
    with pytest.raises(UsageError, match="4 devices requested, but 3 are visible"):
        Devices(workers=4)
    with pytest.raises(UsageError, match="'cuda:1' names one GPU"):
        Devices(workers=2, device="cuda:1")


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"):
        monkeypatch.setenv(name, "0")
    with pytest.raises(UsageError, match=r"pip install 'dare-bench\[cluster\]'"):
        cluster.Ray()


# Ray reads these when it is imported: no statistics are sent, and 127.0.0.1 is not replaced by an outer address.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
ray = need_package("ray")
toy_source.register()
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "node_ip_address": "127.0.0.1"}


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A cluster: the head works too, and a second node can be killed."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(executor_jobs.__file__).parent))
        bare = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}  # a process each
        built = Cluster(initialize_head=True, head_node_args={**NODE, **bare})
        try:
            built.add_node(**NODE)
            ray.init(address=built.address, log_to_driver=False, logging_level="ERROR")
            yield built
        finally:
            ray.shutdown()
            built.shutdown()


def answers(run: Run) -> list[Any]:
    return [
        (row["doc_id"], row["target"], row["metrics"], row["acc"]) for task in run.tasks for row in run.samples(task)
    ]


def test_a_graph_uses_all_nodes_and_a_failure_stays_alone(two_nodes: Any, tmp_path: Path) -> None:
    assert {node["NodeManagerAddress"] for node in ray.nodes()} == {"127.0.0.1"}
    built = cluster.Ray(address=two_nodes.address)
    assert built.workers == 2
    names = [f"train {i}" for i in range(2)]
    jobs = [
        job(tmp_path, "bad", act="fail"),
        job(tmp_path, "behind bad", "bad"),
        *(job(tmp_path, name, act="wait") for name in names),
        *(job(tmp_path, f"eval {name}", name) for name in names),
        job(tmp_path, "board", *(f"eval {name}" for name in names), act="tell"),
    ]
    running = built.run(play, jobs)
    first = next(running)
    result = {first.name: first}
    until(lambda: all(pid(tmp_path, name) for name in names))  # one on each node, until "go" is there
    (tmp_path / "go").touch()
    result |= {done.name: done for done in running}
    assert isinstance(result["bad"].error, DataError) and result["behind bad"].skipped == "bad"
    good = [j.name for j in jobs if "bad" not in j.name]
    assert all(result[name].ok for name in good) and len(result) == len(jobs)
    assert Path(result["board"].value["cwd"]) == Path.cwd()
    begun = told(tmp_path)
    assert sorted(begun) == sorted(j.name for j in jobs if j.name != "behind bad") and begun[-1] == "board"


def test_an_evaluation_outlives_a_node(two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its worker goes on elsewhere, with the pieces that it had taken; what it had answered stays, and the run is that
    of one process."""
    monkeypatch.setattr(sharding, "answer", answer_slowly)
    fields: dict[str, Any] = {"tasks": "toygen,toychoice", "harness": "toy", "limit": 4}
    fields |= {"model": "tiny-llada", "progress": False}
    begin_together(two_nodes, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(evaluate, executor="ray", max_rows=1, output_path=str(tmp_path / "ray"), **fields)
        before = until(lambda: running.done() or begun(tmp_path / "ray"))
        assert not running.done(), "both workers are at work"
        node = two_nodes.list_all_nodes()[-1]
        two_nodes.remove_node(node, allow_graceful=False)
        two_nodes.add_node(**NODE)
        over_ray = running.result(timeout=240)
    alone = evaluate(output_path=str(tmp_path / "alone"), **fields)
    assert ray.is_initialized(), "a connection that was there stays"
    assert over_ray.path.name == alone.path.name and over_ray.results["results"] == alone.results["results"]
    assert answers(over_ray) == answers(alone)
    assert over_ray.block is not None and over_ray.block.events[0].what == "answered in 2 shards side by side"
    after = journaled(over_ray.path)
    assert len(after) == 3, "one of two workers began again"
    assert all(after[name][: len(keys)] == keys for name, keys in before.items()), "what was answered stays"
    assert len({key for keys in after.values() for key in keys}) == 4 + 4 * 3


def begin_together(two_nodes: Any, folder: Path) -> None:
    """Let the next two workers need no imports, so that both are there before one has done all."""
    names = ("one", "other")
    jobs = [job(folder, name, act="wait", imports="dare_bench.model_adapters.llada.family") for name in names]
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: list(cluster.Ray(address=two_nodes.address).run(play, jobs)))
        until(lambda: all(pid(folder, name) for name in names))
        (folder / "go").touch()
        assert all(done.ok for done in running.result(timeout=120))


def journaled(run: Path) -> dict[str, list[str]]:
    """By journal file of a worker: the keys of its samples, in order."""
    found = {}
    for file in run.glob("journal/shard-*.jsonl"):
        records = map(unpack, file.read_bytes().splitlines(keepends=True))
        found[file.name] = [record["key"] for record in records if record is not None and record["type"] == "sample"]
    return found


def begun(out: Path) -> dict[str, list[str]] | None:
    """What the workers of a run have answered, once two have."""
    found = {name: keys for run in out.glob("*") for name, keys in journaled(run).items() if keys}
    return found if len(found) == 2 else None


SWEEP = {
    "name": "two nodes",
    "models": ["tiny-llada-base"],
    "train": [{"method": "sft", "task": "dare_sudoku", "max_steps": 2, "seed": [0, 1, 2, 3]}],
    "eval": {"tasks": "dare_sudoku", "limit": 2},
    "board": True,
}


def test_a_sweep_outlives_a_node(two_nodes: Any, tmp_path: Path) -> None:
    """What the lost node was at is done again, and that alone."""
    out = tmp_path / "out"
    last = [f"train/tiny-llada-base-sft-dare_sudoku-max_steps=2-seed={seed}" for seed in (2, 3)]
    sweep_jobs.act(out, **dict.fromkeys(last, "wait"))
    fields: dict[str, Any] = {"executor": "ray", "job": sweep_jobs.play, "progress": False}
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(sweep, SWEEP, output_path=out, **fields)
        # One on each node, until "go" is there.
        workers = until(lambda: all(pids := [pid(tmp_path, f"seed={i}") for i in (2, 3)]) and pids)
        finished = set(sweep_jobs.told(out)) - set(last)
        two_nodes.remove_node(two_nodes.list_all_nodes()[-1], allow_graceful=False)
        until(lambda: not all(map(alive, workers)))  # its worker outlives a node by a moment
        (tmp_path / "go").touch()
        result = running.result(timeout=120)
    assert result.complete and not result.failed and len(result.runs) == 5 and result.site is not None
    begun = sweep_jobs.told(out)
    jobs = [node for node in result.nodes if node.kind != "board"]
    twice = [name for name in {node.id for node in jobs} if begun.count(name) > 1]
    assert len(twice) == 1 and twice[0] in last
    assert len(begun) == len(jobs) + 1 and len(finished) >= 3 and not set(twice) & finished
    (lost,) = (node for node in result.nodes if node.id in twice)
    assert lost.status == "done" and lost.seconds > 0
    assert sweep(SWEEP, output_path=out, **fields).complete and sweep_jobs.told(out) == begun


def test_errors_are_told_in_one_line(two_nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = cluster.Ray(address=two_nodes.address)
    monkeypatch.setattr(cluster.Path, "cwd", lambda: tmp_path / "only here")
    (done,) = built.run(play, [job(tmp_path, "lost")])
    assert "only here is not on this node" in str(done.error) and "file system that all nodes share" in str(done.error)


def test_an_address_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match=r"no Ray cluster at '127.0.0.1:1' \(nobody there\)"):
        cluster.Ray()
    assert "ray" in sys.modules
