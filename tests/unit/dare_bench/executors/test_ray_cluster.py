"""Ray, on this machine alone: a cluster of two nodes bound to 127.0.0.1, one of which is killed at work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import executor_jobs
import pytest
import sweep_jobs
import toy_source
from executor_jobs import alive, answer_slowly, pid, play, told, until
from require import need_package

from dare_bench.engine import sharding
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import unpack
from dare_bench.errors import DataError, UsageError
from dare_bench.executors import cluster
from dare_bench.protocols import Job
from dare_bench.runs.reader import Run
from dare_bench.sweeps.run import sweep

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


def job(folder: Path, name: str, *after: str, **act: Any) -> Job:
    return Job(name, {"folder": str(folder), "name": name, **act}, after)


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
