# ruff: noqa: F811  (fixtures are imported)
"""Nothing that generated code tries gets it a pass that it has not earned, or leads out of the sandbox of a solution to
the machine or the tests; and what does, said in docs/sandbox.md."""

from __future__ import annotations

import dataclasses
import json
import platform
import sys
from pathlib import Path

import pytest
from sandbox_fakes import ENDS, FAKES, HONEST_TESTS, TESTS
from sandboxes import QUICK, attack, level, namespaces, nothing_left, strongest  # noqa: F401

from dare_bench.sandbox.verdict import Level

STOPPED = dataclasses.replace(QUICK, seconds=1.0)
"""For what waits until its time is over."""

pytestmark = pytest.mark.usefixtures("nothing_left")

# A program that fails for a slip of its own would show nothing.
SLIPS = ("SyntaxError", "IndentationError", "NameError", "ModuleNotFoundError", "UnboundLocalError")


def refuted(level: Level, name: str) -> None:
    """The fake of that name does not pass, and not for a slip of its own."""
    limits = STOPPED if name == "stops itself" else QUICK
    verdict = attack(level, FAKES[name], TESTS.get(name, HONEST_TESTS), limits)
    assert verdict.status in ("failed", "crashed", "timeout"), verdict
    assert not any(slip in verdict.stdout_tail for slip in SLIPS), verdict


@pytest.mark.parametrize("name", FAKES)
def test_no_trick_fakes_a_pass(strongest: Level, name: str) -> None:
    refuted(strongest, name)


@pytest.mark.parametrize("name", ENDS)
def test_no_end_is_a_pass_in_namespaces(namespaces: Level, name: str) -> None:
    """Where bubblewrap works, the test above is at that level."""
    refuted(namespaces, name)


def test_the_right_answer_passes(level: Level) -> None:
    assert attack(level, "def f(x):\n    return x + 1\n", HONEST_TESTS).status == "passed"


# Sends answers of its own making to the process of the tests.
SENDS = """
import json, os, stat
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
channel = next(fd for fd in range(3, 256) if is_socket(fd))
def send(text):
    os.write(channel, len(text).to_bytes(8, "big") + text.encode())
"""


_FIRST = 4  # of the answer's nodes: the call has its function, arguments, named arguments, and all of it


def answer(*nodes: object, item: object = (_FIRST,), changes: object = ()) -> str:
    return json.dumps(["=", item, nodes, changes])


ANSWERS = {
    "nothing": "",
    "no JSON": "][",
    "more than JSON": answer(item=2) + "x",
    "too deep": "[" * 100_000,
    "no list": "7",
    "too short": "[]",
    "another outcome": '["passed",2,[],[]]',
    "no such node": answer(item=[_FIRST]),
    "a later node": answer(["tuple", [[_FIRST + 1]]], ["tuple", [2]]),
    "no such type": answer(["os.stat_result", [2]]),
    "method of the reader": answer(["_init__", 1, 2]),
    "no type": answer(["type", "len"]),
    "type of another module": answer(["type", "subprocess.Popen"]),
    "module of the runner": answer(["module", "__main__"]),
    "module that is not there": answer(["module", "forged"]),
    "module that exits": answer(["module", "unittest.__main__"]),
    "function of another module": answer(["library", "os", "_exit"]),
    "no function": answer(["library", "math", "__loader__"]),
    "exception that is none": answer(["error", "int", [], ""]),
    "array of objects": answer(["numpy.ndarray", "|O", [1], "00" * 8]),
    "array with a shape of its own": answer(["numpy.ndarray", "<i8", [1 << 40], "00" * 8]),
    "named tuple that is code": answer(["namedtuple", "E", ["x=print(1)"], [2]]),
    "unhashable key": answer(["dict", [[_FIRST + 1]], [1]], ["list", []]),
    "object that was not given": answer(["object", "tests", 0]),
    "change of what is not there": answer(item=2, changes=[[99, ["list", []]]]),
    "change of another type": answer(item=2, changes=[[0, ["list", []]]]),
    "request instead": json.dumps(["?", [0], [["tuple", ["call", [1]]], ["library", "os", "abort"]]]),
    "wrong answers": answer(item=3) * 3,
}


@pytest.mark.parametrize("name", ANSWERS)
def test_no_answer_leads_anywhere(strongest: Level, name: str) -> None:
    """In the place of the answer to a call. The tests catch all that they can."""
    solution = SENDS + f"def f(x): send({ANSWERS[name]!r})\n"
    verdict = attack(strongest, solution, "try: right = f(1) == 2\nexcept BaseException: right = True\nassert right")
    assert verdict.status in ("failed", "crashed"), verdict
    assert name == "wrong answers" or "not an answer" in verdict.stdout_tail, verdict


# What a solution does with a function of the tests: ``ask(...)`` is a request as the runner makes it.
ASKS = """
import gc
from dare_bench.sandbox.peer import Peer
ask = next(found for found in gc.get_objects() if type(found) is Peer).ask
class Same(int): pass
def tries(*request):
    try: return ask(*request)
    except AttributeError as error: return str(error)
"""
REACHES = {
    "globals of a function": "tries('get', given, '__globals__')",
    "code of a function": "tries('set', given, '__code__', 1)",
    "frame of a generator": "tries('get', given, 'gi_frame')",
    "class of an object": "tries('get', given, '__class__')",
    "a function of the library": "tries('call', __import__('math').isfinite, (2,), {})",
    "a new class": "tries('call', type, ('E', (int,), {'__eq__': __import__('math').isfinite}), {})",
    "a module": "tries('get', __import__('builtins'), 'exec')",
    "its own object": "tries('iter', [1])",
}


@pytest.mark.parametrize("name", REACHES)
def test_what_tests_hand_over_leads_nowhere(strongest: Level, name: str) -> None:
    tests = """
class C: pass
for given in (lambda: 1, (x for x in 'ab'), C()):
    said = f(given)
    assert 'the solution' in said or 'has no attribute' in said, said
"""
    verdict = attack(strongest, ASKS + f"def f(given): return {REACHES[name]}\n", tests)
    assert verdict.status == "passed", verdict


def test_the_tests_are_out_of_sight(strongest: Level) -> None:
    """Neither their text nor a file, process, signal or variable of theirs."""
    solution = """
import gc, os, signal, sys, threading
def f(x):
    frames = [frame.f_code.co_filename for frame in sys._current_frames().values()]
    texts = [found for found in gc.get_objects() if isinstance(found, dict) and "secret_name" in found]
    others = []
    for pid in range(2, 99):
        try: os.kill(pid, 0); others.append(pid)
        except OSError: pass
    return frames.count("<tests>"), len(texts), len(others), sorted(os.listdir("/tmp")), len(threading.enumerate())
"""
    # Packages that lie below /tmp are shown where they lie.
    installed = [Path(sys.prefix).parts[2]] if sys.prefix.startswith("/tmp/") else []
    tests = (
        "import os\nopen('/tmp/of_the_tests', 'w').close()\nsecret_name = 1\nothers = f(1)[2]\n"
        f"assert f(1) == (0, 0, others, {installed!r}, 1) and others <= 2, f(1)\n"
    )
    verdict = attack(strongest, solution, tests)
    assert verdict.status == "passed", verdict


# Wrong solutions that pass: docs/sandbox.md, "What is not stopped", lists them in this order.
NOT_STOPPED = {
    "a comparison by a method of the solution's": (
        "class E:\n    def equals(s, o): return True\ndef f(x): return E()",
        "assert f(1).equals(2)",
    ),
    "a name that the tests do not define": (
        "def f(x): return None\ndef isclose(a, b): return True",
        "assert isclose(f(1), 2)",
    ),
    "tests that hold for more than the right answer": (
        "def f(x): return []",
        "import numpy\nassert numpy.allclose(f(1), 2.0)",
    ),
    "an endless supply of answers": (
        "import itertools\ndef f(x): return itertools.count()",
        "assert 2 in f(1)",
    ),
    "an argument that holds the answer": (
        "def f(x, right): return right",
        "right = 2\nassert f(1, right) == right",
    ),
    "changing what the tests compare with": (
        "def f(x):\n    x[:] = []\n    return x",
        "x = [1]\nassert f(x) == [2 for _ in x]",
    ),
}


@pytest.mark.parametrize("name", NOT_STOPPED)
def test_what_is_not_stopped(strongest: Level, name: str) -> None:
    assert attack(strongest, *NOT_STOPPED[name]).status == "passed"


# Of x86-64, with arguments that would do something where it is allowed.
CALLS = {
    "mount": (165, b"none", b"/tmp", b"tmpfs", 0, 0), "umount2": (166, b"/tmp", 2), "chroot": (161, b"/tmp"),
    "pivot_root": (155, b"/tmp", b"/tmp"), "unshare user": (272, 0x10000000), "unshare mount": (272, 0x20000),
    "unshare pid": (272, 0x20000000), "setns": (308, 0, 0), "clone user": (56, 0x10000011), "clone3": (435, 0, 88),
    "ptrace": (101, 16, 1), "process_vm_readv": (310, 1), "process_vm_writev": (311, 1), "pidfd_getfd": (438, 0, 0),
    "kcmp": (312, 1, 1), "bpf": (321, 0), "perf_event_open": (298, 0), "userfaultfd": (323, 0), "keyctl": (250, 0),
    "add_key": (248, b"user", b"x"), "request_key": (249, b"user", b"x"), "memfd_create": (319, b"x"),
    "memfd_secret": (447, 0), "io_uring_setup": (425, 8), "shmget": (29, 0, 4096, 0o1600), "msgget": (68, 0, 0o1600),
    "init_module": (175, 0), "delete_module": (176, b"x"), "finit_module": (313, 0), "kexec_load": (246, 0),
    "open_by_handle_at": (304, 0), "fsopen": (430, b"tmpfs"), "open_tree": (428, -100, b"/", 1),
    "move_mount": (429, 0), "mount_setattr": (442, -100), "reboot": (169, 0xFEE1DEAD, 672274793, 0),
    "swapon": (167, b"/tmp/x"), "sethostname": (170, b"x", 1), "settimeofday": (164, b"\0" * 16, 0),
    "clock_settime": (227, 0, b"\0" * 16), "iopl": (172, 3), "ioperm": (173, 0, 8, 1), "syslog": (103, 3, b"\0", 1),
    "acct": (163, b"/tmp/x"), "quotactl": (179, 0), "fanotify_init": (300, 0, 0), "setuid": (105, 0),
    "setgid": (106, 0),
    "setgroups": (116, 1, b"\0" * 4), "mknod": (133, b"/tmp/mem", 0o20666, 0x101), "nice": (141, 0, 0, -5),
    "x32": (0x40000000 + 39,), "vhangup": (153,),
}  # fmt: skip


def test_no_system_call_leads_out(level: Level) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86-64")
    solution = f"""
import ctypes, os
libc = ctypes.CDLL(None)
libc.syscall.restype = ctypes.c_long
open("/tmp/x", "w").close()
done = {{}}
for name, (number, *arguments) in {CALLS!r}.items():
    child = os.fork()  # whatever it does to a process
    if child == 0:
        words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
        os._exit(libc.syscall(ctypes.c_long(number), *words) >= 0)
    done[name] = os.waitpid(child, 0)[1]
"""
    verdict = attack(level, solution, "assert not [name for name, status in done.items() if status], done")
    assert verdict.status == "passed", verdict


# Each is an expression, or raises OSError.
CLOSED = {
    "link to a file": "os.symlink('/etc/shadow', 'link') or open('link')",
    "hard link": "os.link('/usr/bin/env', 'link')",
    "way up": "open('/tmp/../../../../etc/passwd')",
    "folder of its own program": "open(os.path.dirname(sys.executable) + '/new', 'w')",
    "device": "open('/dev/mem')",
    "terminal": "open('/dev/tty')",
    "disk": "open('/dev/vda') if not os.path.exists('/dev/sda') else open('/dev/sda')",
    "kernel's messages": "open('/dev/kmsg')",
    "processes": "os.listdir('/proc')",
    "own memory": "open('/proc/self/mem', 'wb')",
    "own descriptors": "os.listdir('/dev/fd')",
    "kernel": "os.listdir('/sys')",
    "cgroup": "open('/sys/fs/cgroup/cgroup.procs', 'w')",
    "core pattern": "open('/proc/sys/kernel/core_pattern', 'w')",
    "home": "os.listdir('/root/.ssh')",
    "users": "open('/etc/passwd')",
    "docker": "socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')",
    "bus": "socket.socket(socket.AF_UNIX).connect('/run/dbus/system_bus_socket')",
    "metadata service": "socket.create_connection(('169.254.169.254', 80), timeout=1)",
    "own machine": "socket.create_connection(('127.0.0.1', 22), timeout=1)",
    "version 6": "socket.create_connection(('::1', 22), timeout=1)",
    "names": "socket.getaddrinfo('example.org', 80)",
    "datagrams": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
    **{f"family {number}": f"socket.socket({number}, socket.SOCK_RAW)" for number in (16, 17, 29, 30, 31, 38, 40, 44)},
    "raw": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "suid": "os.chown('/tmp', 0, 0)",
    "program of another user": "os.setresuid(0, 0, 0)",
    "mode of a program": "os.chmod('/usr/bin/env', 0o4777)",
    "parent": "os.kill(os.getppid(), 9) or os.kill(99999, 9)",
    "group": "os.killpg(1, 9) or os.killpg(99999, 9)",
    "priority": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
    "limits": "resource.setrlimit(resource.RLIMIT_NPROC, (9999, 9999))",
    "memory limit": "resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "library": "open(os.__file__, 'a')",
    "name of the machine": "socket.sethostname('x')",
}


def test_nothing_outside_opens(level: Level) -> None:
    """All in one program: a start for each would take a minute."""
    solution = f"""
import os, resource, socket, sys
opened = []
for name, code in {CLOSED!r}.items():
    try: eval(code)
    except (OSError, ValueError): continue
    opened.append(name)
"""
    verdict = attack(level, solution, "assert opened == [], opened")
    assert verdict.status == "passed", verdict


def test_the_solution_holds_one_channel_and_the_output(level: Level) -> None:
    """And of the tests' side nothing: neither descriptor, nor process, nor file."""
    solution = """
import os, stat
kinds = []
for fd in range(256):
    try: kinds.append(stat.S_IFMT(os.fstat(fd).st_mode))
    except OSError: pass
sockets = kinds.count(stat.S_IFSOCK)
try: os.read(1, 1)
except OSError: closed = True
"""
    verdict = attack(level, solution, "assert sockets == 1 and closed and len(kinds) <= 5, kinds")
    assert verdict.status == "passed", verdict
