"""Executors: the order of jobs, failures that stay alone, workers that die, parents that die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from executor_jobs import alive, pid, play, told, until

from dare_bench.errors import DareError, DataError, UnknownNameError, UsageError
from dare_bench.executors import cluster, executor
from dare_bench.executors.devices import Devices
from dare_bench.executors.graph import Graph
from dare_bench.protocols import Done, Executor, Job

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
