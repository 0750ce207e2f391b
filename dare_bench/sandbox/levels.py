"""Which isolation works on this machine: each level is tried once, by a harmless probe."""

from __future__ import annotations

import functools
import shutil
import sys
import threading
from typing import Final

from dare_bench.sandbox.run import SandboxRun
from dare_bench.sandbox.verdict import Level, Limits

_PROBE_SECONDS = 20.0
_PROBE: Final = """
import os, socket
with open("/tmp/probe", "w") as file:
    file.write("x")
try:
    socket.create_connection(("192.0.2.1", 80), timeout=1)
except OSError:
    offline = True
try:
    with open("/probe", "w"):
        writable = True
except OSError:
    writable = False
"""
_PROBE_TESTS: Final = """
assert offline and not writable
assert not os.path.exists("/etc/passwd") and not os.path.exists("/proc/1")
assert os.getpid() < 10 and len(os.environ) < 12
"""

_lock = threading.Lock()


def isolation() -> Level:
    """The strongest level that works on this machine; tried once in this process (about a tenth of a second)."""
    return _probed()[0]


def why_none() -> str:
    """The reason why each level above :func:`isolation` 's does not work, in one line."""
    return "; ".join(_probed()[1])


def _probed() -> tuple[Level, tuple[str, ...]]:
    with _lock:  # other threads wait for the first
        return _probe()


@functools.cache
def _probe() -> tuple[Level, tuple[str, ...]]:
    reasons: list[str] = []
    levels: tuple[Level, ...] = ("bubblewrap", "namespaces")
    for level in levels:
        reason = _fault(level)
        if reason is None:
            return level, tuple(reasons)
        reasons.append(f"{level}: {reason}")
    return "none", tuple(reasons)


def _fault(level: Level) -> str | None:
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if level == "bubblewrap" and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    verdict = SandboxRun(level, _PROBE, _PROBE_TESTS, Limits(seconds=_PROBE_SECONDS)).execute()
    return None if verdict.status == "passed" else " ".join(verdict.stdout_tail.split())
