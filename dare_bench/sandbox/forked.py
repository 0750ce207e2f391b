"""A sandbox for a forked process, which keeps the objects that it needs in memory.

Harness code that scores answers works on loaded tasks, which cannot be passed to a new process. So the fork itself
enters new namespaces, by the same system calls as :mod:`dare_bench.sandbox.enter`: no network, no files but the given
ones (read-only), no visible processes, an empty environment, no rights. It still has its copy of our memory.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import stat
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dare_bench.sandbox import enter, view
from dare_bench.sandbox import filter as calls
from dare_bench.sandbox.command import ENVIRONMENT, free_user, is_root

_inside: list[bool] = []
_POLL_SECONDS = 2.0
_PROCESSES = 512
_TMP_MB = 256

Tree = list[tuple[str, str, str]]
"""Kind, path and value of each entry (:class:`dare_bench.sandbox.view.ViewEntry`)."""


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What an enclosed process can use: ``folders`` to read, ``scratch`` folders that are empty and writable, and
    ``environment`` variables besides the few of every sandbox."""

    folders: Sequence[str] = ()
    scratch: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def tree(self) -> Tree:
        """The files that are visible: these folders, and the packages that are installed or imported by now.

        To be called before the fork: a fork that looked through all modules would copy the memory that they lie in.
        """
        return list(view.tree_with(self.folders, self.scratch, _TMP_MB))


def enclose(tree: Tree, environment: Mapping[str, str]) -> None:
    """In a forked process with one thread: continue inside a sandbox that has only these files and variables, besides
    those of every sandbox; raises OSError.

    Returns in a grandchild; its process 1 and its parent outside only wait for its end, and exit with its status.
    """
    mode, user = ("root", free_user() if _open_to_all(tree) else 0) if is_root() else ("user", 0)
    _forget_environment({**ENVIRONMENT, **environment})
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
    tempfile.tempdir = None  # to be determined again: the old one does not exist here
    _inside.append(True)


def _wait_outside(child: int, parent: int) -> NoReturn:
    """Exit with the status of the first process inside, and kill it when our parent has ended. (The kernel's signal
    for that comes when the thread that forked us ends, although its process continues.)"""
    while os.getppid() == parent:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
        signal.sigtimedwait({signal.SIGCHLD}, _POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    os._exit(1)


def is_enclosed() -> bool:
    """Is this process in such a sandbox?"""
    return bool(_inside)


def _open_to_all(tree: Tree) -> bool:
    """May another user read these files? If not, root stays root, without its rights but with its files."""
    modes = [Path(path).stat().st_mode for kind, path, _ in tree if kind == "bind"]
    needed = ((mode, 0o005 if stat.S_ISDIR(mode) else 0o004) for mode in modes)
    return all(mode & bits == bits for mode, bits in needed)


def _forget_environment(new: Mapping[str, str]) -> None:
    """Clear the environment, which has tokens and keys: Python's copy, and the block that the kernel passed."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    os.environ.clear()
    os.environ.update(new)
    start, end = int(fields[47]), int(fields[48])  # env_start and env_end, proc(5): fields 50 and 51
    if start and end > start:
        ctypes.memset(start, 0, end - start)
