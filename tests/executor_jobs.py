"""What jobs of the executors' tests do, importable, so that worker processes and Ray find it: watching them, and a
worker's ``answer`` with a pause before each sample, which can be killed in the middle of a cheap run."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dare_bench.engine.journal import Journal
from dare_bench.engine.sharding import Shard, answer
from dare_bench.errors import DataError


class Odd(Exception):
    """An exception that cannot be made again from what pickle keeps."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def told(folder: Path) -> list[str]:
    """Names of the jobs that were begun, in order."""
    file = folder / "begun"
    return file.read_text().splitlines() if file.exists() else []


def play(payload: dict[str, Any]) -> Any:
    """Do as the payload says; every beginning is noted in ``folder/begun``, every end in ``folder/ended``."""
    folder, name = Path(payload["folder"]), payload["name"]
    note(folder / "begun", name)
    time.sleep(payload.get("seconds", 0))
    if module := payload.get("imports"):
        importlib.import_module(module)
    match payload.get("act"):
        case "fail":
            raise DataError(f"{name} was told to fail")
        case "odd":
            raise Odd("one", "two")
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            if told(folder).count(name) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            (folder / f"{name}.pid").write_text(str(os.getpid()))
            time.sleep(600)
        case "wait":
            (folder / f"{name}.pid").write_text(str(os.getpid()))
            until(lambda: (folder / "go").exists())
        case "tell":
            return {"pid": os.getpid(), "cwd": str(Path.cwd()), "threads": os.environ.get("OMP_NUM_THREADS")}
        case "unpicklable":
            return lambda: None
    note(folder / "ended", name)
    return name


def note(file: Path, line: str) -> None:
    """One line, in one write: many processes may add theirs."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def pid(folder: Path, name: str) -> int:
    file = folder / f"{name}.pid"
    return int(file.read_text() or 0) if file.exists() else 0


def alive(process: int) -> bool:
    """Does the process run? One that waits to be reaped by whoever inherited it does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(there: Callable[[], Any], seconds: float = 120.0) -> Any:
    """Wait for something; fails if it does not come."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if result := there():
            return result
        time.sleep(0.02)
    raise AssertionError("it did not come about in time")


_append = Journal.append


def answer_slowly(shard: Shard) -> dict[str, str]:
    Journal.append = _pause_and_append  # type: ignore[method-assign]
    try:
        return answer(shard)
    finally:
        Journal.append = _append  # type: ignore[method-assign]


def _pause_and_append(journal: Journal, record: dict[str, Any]) -> None:
    if record["type"] == "sample":
        time.sleep(0.4)
    _append(journal, record)
