"""A sandbox for a process that is forked instead of started: it keeps the objects in memory that it needs.

Harness code that scores answers works on loaded tasks, which no fresh process could be handed. So the fork itself goes
into new namespaces, by the same system calls as :mod:`dare_bench.sandbox.enter`: no network, no files but those named
(read-only), no other process in sight, an empty environment, no rights. What it still has is its copy of our memory.
"""

from __future__ import annotations

import ctypes
import functools
import os
import select
import signal
import stat
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dare_bench.sandbox import enter, view
from dare_bench.sandbox import filter as calls
from dare_bench.sandbox.command import ENVIRONMENT, free_user, is_root
from dare_bench.sandbox.processes import children

_inside: list[bool] = []
_LOOK_SECONDS = 2.0
_START_SECONDS = 20.0
_PROCESSES = 512
_TMP_MB = 256


@dataclass(frozen=True, slots=True)
class Room:
    """What an enclosed process has: ``folders`` to read, ``scratch`` folders that are empty and can be written to, and
    ``environment`` variables beside the few that every sandbox has."""

    folders: Sequence[str] = ()
    scratch: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def enclose(room: Room) -> None:
    """In a forked process with one thread: go on inside a sandbox that sees this room and our packages alone.

    Returns in a grandchild, whose process 1 and whose parent outside only wait for its end, and end as it does.

    Raises:
        OSError: the system refuses it.
    """
    import resource

    tree: list[tuple[str, str, str]] = [
        (entry.kind, entry.path, entry.value) for entry in view.tree_with(room.folders, room.scratch, _TMP_MB)
    ]
    mode, user = ("root", free_user() if _open_to_all(tree) else 0) if is_root() else ("user", 0)
    _forget_environment({**ENVIRONMENT, **room.environment})
    parent = os.getppid()
    enter.unshare(mode)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    if child := os.fork():
        _wait_outside(child, parent)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    enter.die_with_parent()
    enter.build(tree)
    enter.give_up(user)
    enter.die_with_parent()
    if child := os.fork():
        enter.relay(child)
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))
    enter.install(calls.program())
    tempfile.tempdir = None  # found anew: what it was is not here
    _inside.append(True)


def _wait_outside(child: int, parent: int) -> NoReturn:
    """End as the first process inside ends, and end it when our parent has gone. (The kernel's own signal for that
    comes when the thread ends that forked us, though its process goes on.)"""
    while os.getppid() == parent:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        signal.sigtimedwait({signal.SIGCHLD}, _LOOK_SECONDS)
    os.kill(child, signal.SIGKILL)
    os._exit(1)


def is_enclosed() -> bool:
    """Is this process in such a sandbox?"""
    return bool(_inside)


def _open_to_all(tree: Iterable[tuple[str, str, str]]) -> bool:
    """May another user read what is shown? Where not, root stays root, without its rights but with its files."""
    modes = [Path(path).stat().st_mode for kind, path, _ in tree if kind == "bind"]
    needed = ((mode, 0o005 if stat.S_ISDIR(mode) else 0o004) for mode in modes)
    return all(mode & bits == bits for mode, bits in needed)


def _forget_environment(new: Mapping[str, str]) -> None:
    """Tokens and keys stand in the environment: in Python's copy, and in the block that the kernel handed over."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    os.environ.clear()
    os.environ.update(new)
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end, proc(5): fields 50 and 51
    if start and end > start:
        ctypes.memset(start, 0, end - start)


@functools.cache
def why_not_enclosed() -> str | None:
    """Why a forked process cannot be enclosed on this machine, in one line; None if it can. Tried once."""
    if sys.platform != "linux":
        return f"it needs Linux, this is {sys.platform}"
    said = _try() or _try()  # a fork that inherits a lock which nobody releases says nothing
    return None if said == "+" else said or f"a forked process said nothing for {_START_SECONDS:g} s"


def _try() -> str:
    """``+``, or why a forked process could not be enclosed; nothing where it does not say."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it ended without a word"
        try:
            enclose(Room())
            inside = not Path("/proc/1").exists() and not Path("/etc/passwd").exists()
            said = "+" if inside else "files of the machine can be seen"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode("utf-8", "replace"))
            os._exit(0)
    os.close(writing)
    waiting = select.poll()
    waiting.register(reading, select.POLLIN)
    said = os.read(reading, 4096).decode("utf-8", "replace") if waiting.poll(1000 * _START_SECONDS) else ""
    os.close(reading)
    if not said:
        for pid in (*children(child), child):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    os.waitpid(child, 0)
    return said
