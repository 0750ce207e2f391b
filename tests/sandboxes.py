"""What the tests of the sandbox share: the levels that work here, and what a run leaves behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from require import lacks, need

from dare_bench.sandbox.pool import isolation, why_none
from dare_bench.sandbox.run import SandboxRun
from dare_bench.sandbox.verdict import Level, Limits, Verdict

# The limit is on the command lines: it tells our processes from those of other runs on this machine.
MEMORY_MB = 600 + os.getpid() % 400
QUICK = Limits(seconds=4.0, memory_mb=MEMORY_MB)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def level(request: pytest.FixtureRequest) -> Level:
    if request.param == "bubblewrap":
        need("bwrap", "bubblewrap")
    return _working(request.param)


@pytest.fixture
def namespaces() -> Level:
    return _working("namespaces")


def _working(level: Level) -> Level:
    if why := _refused(level):
        lacks(level, f"does not work here: {why}")
    return level


@cache
def _refused(level: Level) -> str:
    """Why a level does not work here; empty where it does. Tried once in this process."""
    verdict = attack(level, "")
    return verdict.stdout_tail or "no reason given" if verdict.status == "refused" else ""


@pytest.fixture
def strongest() -> Level:
    """The level that runs take here."""
    if isolation() == "none":
        lacks("bubblewrap", f"does not isolate here, nor do namespaces: {why_none()}")
    return isolation()


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test every process of its runs has ended."""
    yield
    assert_nothing_left()


def assert_nothing_left(mark: str = str(MEMORY_MB << 20)) -> None:
    deadline = time.monotonic() + 60
    while (left := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left


def processes(mark: str) -> list[str]:
    """Every process on the machine with ``mark`` on its command line."""
    result = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes():
                result.append(path.parent.name)
    return result


def attack(level: Level, solution: str, tests: str = "", limits: Limits = QUICK) -> Verdict:
    return SandboxRun(level, solution, tests, limits).execute()


def attack_together(level: Level, programs: Mapping[str, tuple[str, str]], limits: Limits) -> dict[str, Verdict]:
    """The verdicts of programs (solution, tests) that wait for their time limit: eight run at a time."""
    with ThreadPoolExecutor(8) as pool:
        verdicts = pool.map(lambda program: attack(level, *program, limits), programs.values())
        return dict(zip(programs, verdicts, strict=True))
