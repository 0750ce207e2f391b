"""The guard ends what does not end, and nothing that a call does reaches the process that asked."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess

seen: list[int] = []


def echo(value: Any) -> Any:
    return value


def power() -> int:
    """One C call that neither ends nor looks at signals."""
    return len(str(9**9**9))


def gone(pid: int, seconds: float = 60.0) -> bool:
    """Has the process ended (a zombie has) within ``seconds``?"""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
            os.kill(pid, 0)
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


@pytest.fixture
def guard() -> Any:
    functions: dict[str, Callable[..., Any]] = {
        "echo": echo,
        "pid": os.getpid,
        "power": power,
        "sleep": time.sleep,
        "remember": lambda value: seen.append(value) or list(seen),
    }
    with WorkerProcess(functions, 2.0) as built:
        yield built


def test_values_come_back_and_the_worker_is_kept(guard: WorkerProcess) -> None:
    value = {"a": [1, 2.5, None], "ü": ["x", True]}
    assert guard.call("echo", value) == value
    assert guard.call("echo", "x" * 3_000_000) == "x" * 3_000_000
    assert guard.call("pid") == guard.call("pid") != os.getpid()
    assert guard.call("remember", 1) == [1] and guard.call("remember", 2) == [1, 2] and seen == []


def test_a_call_costs_under_a_millisecond(guard: WorkerProcess) -> None:
    guard.call("echo", 0)
    times = []
    for _ in range(300):
        start = time.perf_counter()
        guard.call("echo", {"doc": "x" * 500})
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3  # the others wait for programs that have their turns


def test_a_c_call_without_end_is_ended(guard: WorkerProcess) -> None:
    before = guard.call("pid")
    start = time.monotonic()
    with pytest.raises(ItemTimeout, match=r"within 0\.5 s"):
        guard.call("power", seconds=0.5)
    assert time.monotonic() - start < 60  # alone it would take for ever
    assert gone(before)
    assert guard.call("pid") not in (before, os.getpid())


def test_what_the_call_had_started_is_ended_with_it(tmp_path: Path) -> None:
    place = tmp_path / "pid"

    def parent() -> None:
        child = subprocess.Popen(["sleep", "60"])
        place.write_text(str(child.pid))
        child.wait()

    with WorkerProcess({"parent": parent}, 10) as guard:
        with pytest.raises(ItemTimeout):
            guard.call("parent", seconds=1)
        assert gone(int(place.read_text()))


@pytest.mark.parametrize(
    ("call", "message", "died"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV", True),
        (lambda: os._exit(7), "exit status 7", True),
        (lambda: sys.exit(3), "SystemExit: 3", False),
        (lambda: bytearray(6 << 30), "MemoryError", False),
        (lambda: int("seven\nlines"), "ValueError: invalid literal for int", False),
        (lambda: threading.Lock(), "TypeError: a result of type lock cannot be sent as JSON", False),
    ],
)
def test_a_call_that_fails_is_one_error_and_the_next_call_works(call: Any, message: str, died: bool) -> None:
    with WorkerProcess({"call": call, "echo": echo}, 5) as guard:
        with pytest.raises(ItemError, match=message) as caught:
            guard.call("call")
        assert caught.value.died is died and "\n" not in str(caught.value)
        assert guard.call("echo", "next") == "next"


def test_endless_recursion_is_an_error() -> None:
    def deeper(n: int) -> int:
        return deeper(n + 1) + 1

    with WorkerProcess({"deeper": deeper, "echo": echo}, 5) as guard:
        with pytest.raises(ItemError, match="RecursionError"):
            guard.call("deeper", 0)
        assert guard.call("echo", 1) == 1


def test_a_worker_is_silent(capfd: pytest.CaptureFixture[str]) -> None:
    def noise() -> None:
        print("stdout")
        print("stderr", file=sys.stderr)
        logging.getLogger("noise").error("log")
        os.write(1, b"raw 1")
        os.write(2, b"raw 2")
        subprocess.run(["sh", "-c", "echo child"], check=True)
        assert sys.stdin.read() == ""

    with WorkerProcess({"noise": noise}, 10) as guard:
        assert guard.call("noise") is None
    assert capfd.readouterr() == ("", "")


def test_handlers_timers_and_alarms_of_a_scorer_work_in_a_worker() -> None:
    """Scorers set SIGALRM, which Python allows in a main thread only; here the caller is another thread."""

    def alarmed() -> str:
        def ring(*_: Any) -> None:
            raise TimeoutError("rang")

        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with contextlib.suppress(TimeoutError):
            time.sleep(5)
            return "overslept"
        return "rang"

    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with WorkerProcess({"alarmed": alarmed}, 10) as guard:
            output: list[str] = []
            thread = threading.Thread(target=lambda: output.append(guard.call("alarmed")))
            thread.start()
            thread.join(20)
            assert output == ["rang"]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_threads_of_torch_and_locks_that_are_held_do_not_stop_a_fork() -> None:
    stop = threading.Event()

    def busy() -> None:
        logger = logging.getLogger("busy")
        while not stop.is_set():
            torch.ones(64, 64) @ torch.ones(64, 64)
            logger.debug("lock the handlers")
            print("lock the stream", end="", file=sys.stderr)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(8):
            with WorkerProcess({"noise": lambda n: print(n) or logging.error("n") or n}, 10) as guard:
                assert guard.call("noise", number) == number
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_calls_from_several_threads_take_turns(guard: WorkerProcess) -> None:
    result: dict[int, Any] = {}
    threads = [threading.Thread(target=lambda n=n: result.update({n: guard.call("echo", n)})) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert result == {n: n for n in range(16)}


def test_a_worker_keeps_no_file_or_lock_of_its_parent(tmp_path: Path, guard: WorkerProcess) -> None:
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        guard.call("echo", 1)
    with (tmp_path / "lock").open("w") as file:  # closing gave it up, though the worker was forked while it was held
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_inherited_objects_do_not_close_what_a_worker_has_opened_since(tmp_path: Path) -> None:
    """An inherited file closes its number when it is deallocated, as multiprocessing does with its own in a child."""
    files = [(tmp_path / str(i)).open("w") for i in range(40)]

    def echo() -> str:
        pipes = [os.pipe() for _ in range(20)]
        files.clear()
        for _, writing in pipes:
            os.write(writing, b"x")
        return b"".join(os.read(reading, 1) for reading, _ in pipes).decode()

    with WorkerProcess({"echo": echo}, 20) as process:
        assert process.call("echo") == "x" * 20


def test_ctrl_c_while_waiting_ends_the_worker(guard: WorkerProcess) -> None:
    # A test run started in the background hands on a SIGINT that is ignored; a terminal's is not.
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    before = guard.call("pid")
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        guard.call("sleep", 60, seconds=60)
    signal.signal(signal.SIGINT, was)
    timer.join()
    assert gone(before)
    assert guard.call("echo", "after") == "after"


def test_closing_ends_the_worker_and_a_dead_one_is_replaced_between_calls(guard: WorkerProcess) -> None:
    first = guard.call("pid")
    os.kill(first, signal.SIGKILL)
    assert gone(first)
    second = guard.call("pid")
    assert second != first
    guard.close()
    assert gone(second)


PARENT = """
import os, sys, time
from dare_bench.sandbox.worker_process import WorkerProcess
guard = WorkerProcess({"pid": os.getpid}, 1)
print(guard.call("pid"), flush=True)
time.sleep(60 if sys.argv[1] != "leave" else 0)
"""


@pytest.mark.parametrize("how", ["idle", "leave"])
def test_a_worker_does_not_outlive_its_parent(how: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, how], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    if how == "idle":
        parent.kill()  # no farewell
    parent.wait(30)
    parent.stdout.close()
    assert gone(worker)


def test_a_busy_worker_of_a_killed_parent_has_a_bound() -> None:
    """Nobody is left to kill it, so its processor time is bounded."""
    import resource

    def bounds() -> tuple[float, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return resource.getrlimit(resource.RLIMIT_CPU)[0], used.ru_utime + used.ru_stime

    with WorkerProcess({"bounds": bounds}, 3) as guard:
        bound, used = guard.call("bounds")
    assert 12 < bound - used < 30


def test_a_limit_is_positive() -> None:
    with pytest.raises(ValueError, match="seconds is 0"):
        WorkerProcess({}, 0)
