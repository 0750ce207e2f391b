"""SIGKILL at random points of a run; each resumed run ends as an unbroken one, and nothing finished is done twice."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy_source
from toy_model import ToyModel

from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.journal import unpack
from dare_bench.errors import RunError
from dare_bench.runs.reader import Run
from dare_bench.types import Request, Sample

toy_source.register()

KILLS = 20
# Children are forked, so that what is imported here (statsmodels takes a second) is there already.
fork = multiprocessing.get_context("fork")


class Telling(ToyModel):
    """Writes down each request before it works on it, where a kill cannot take it away."""

    def __init__(self, log: Path, delay: float) -> None:
        super().__init__(delay=delay)
        self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def _told(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            os.write(self.log, f"{request.key}\n".encode())
            yield request

    def generate(self, requests: Iterable[Request], **kwargs: Any) -> Iterator[Sample]:
        return super().generate(self._told(requests), **kwargs)

    def score(self, requests: Iterable[Request], **kwargs: Any) -> Iterator[Sample]:
        return super().score(self._told(requests), **kwargs)


def work(out: Path, delay: float = 0.003) -> None:
    evaluate(
        model=Telling(out.with_suffix(".log"), delay),
        progress=False,
        harness="toy",
        tasks="toygen,toychoice",
        output_path=str(out),
        max_rows=3,
    )


def told(out: Path) -> list[str]:
    log = out.with_suffix(".log")
    return log.read_text().split() if log.exists() else []


def journaled(out: Path) -> set[str]:
    files = list(out.glob("*/journal/main.jsonl"))
    lines = files[0].read_bytes().splitlines(keepends=True) if files else []
    records = [record for record in map(unpack, lines) if record is not None]
    return {record["key"] for record in records if record["type"] == "sample"}


_FILES = {"samples_sha256", "traces_sha256"}
"""Of files that hold times, too."""


def contents(out: Path) -> dict[str, Any]:
    """What a run is, without its dates and the times it took."""
    run = Run(next(path for path in out.iterdir() if path.is_dir()))
    assert run.status == "complete" and run.block is not None
    lines = {task: [*run.samples(task), *run.traces(task)] for task in run.tasks}
    for row in (row for rows in lines.values() for row in rows):
        for answer in row.get("dare_bench", ()):
            answer.pop("seconds")
            answer.pop("tokens_per_s", None)
    block = run.block
    return {
        "name": run.path.name,
        "lines": lines,
        "results": run.results["results"],
        "tasks": {name: task.model_dump(exclude=_FILES) for name, task in block.tasks.items()},
        "ci": {name: {k: ci.model_dump() for k, ci in result.items()} for name, result in block.ci.items()},
        "cost": [block.cost.nfe, block.cost.tokens, block.cost.tokens_to_eos, block.cost.requests],
    }


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float, int]:
    """(an unbroken run, how long it took, its requests)."""
    out = tmp_path_factory.mktemp("unbroken") / "out"
    work(tmp_path_factory.mktemp("warm") / "out", delay=0)
    child = fork.Process(target=work, args=(out,))
    begin = time.monotonic()
    child.start()
    child.join()
    assert child.exitcode == 0
    return contents(out), time.monotonic() - begin, len(told(out))


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_and_resumed(unbroken: tuple[dict[str, Any], float, int], tmp_path: Path, number: int) -> None:
    whole, length, requests = unbroken
    out = tmp_path / "out"
    child = fork.Process(target=work, args=(out,))
    child.start()
    # One point in each twentieth of the run, so that beginning, middle and the writing of results are all met.
    child.join(timeout=length * (number + random.Random(number).random()) / KILLS)
    child.kill()
    child.join()
    assert child.exitcode in (-signal.SIGKILL, 0)
    before, finished = told(out), journaled(out)
    assert finished <= set(before)
    work(out, delay=0)
    again = told(out)[len(before) :]
    assert not finished & set(again), "a finished sample was computed twice"
    assert len(finished) + len(again) == requests
    assert contents(out) == whole


def test_killed_many_times_over_one_run(unbroken: tuple[dict[str, Any], float, int], tmp_path: Path) -> None:
    whole, length, requests = unbroken
    out = tmp_path / "out"
    points, kills = random.Random(0), 0
    for attempt in range(30):
        child = fork.Process(target=work, args=(out,))
        child.start()
        # The first kills come early: how long a run takes is not the same every time.
        child.join(timeout=length * (points.uniform(0.02, 0.1) if attempt < 3 else points.uniform(0.05, 0.4)))
        child.kill()
        child.join()
        kills += child.exitcode != 0
        if child.exitcode == 0:
            break
    assert kills >= 2
    work(out, delay=0)
    assert contents(out) == whole
    assert len(journaled(out)) == requests


def test_two_processes_on_one_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    child = fork.Process(target=work, args=(out, 0.02))
    child.start()
    try:
        while child.is_alive() and not journaled(out):
            time.sleep(0.01)
        os.kill(child.pid or 0, signal.SIGSTOP)  # it must not finish while we look
        with pytest.raises(RunError, match="another process"):
            work(out)
        os.kill(child.pid or 0, signal.SIGCONT)
    finally:
        child.join(120)
    assert child.exitcode == 0
    assert len(told(out)) == len(set(told(out))), "the second process computed something"
    assert json.loads(next(out.glob("*/done.json")).read_text())["status"] == "complete"
