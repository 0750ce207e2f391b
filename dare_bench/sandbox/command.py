"""The command that starts a worker at each level, and its environment."""

from __future__ import annotations

import binascii
import functools
import marshal
import os
import secrets
import shutil
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from dare_bench.sandbox import filter as calls
from dare_bench.sandbox import view
from dare_bench.sandbox.verdict import Level, Limits

ENVIRONMENT = {
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "OPENBLAS_NUM_THREADS": "1",  # each thread reserves address space, and a run has one core's worth of time
    "OMP_NUM_THREADS": "1",
}
_NOBODY = 65534
# Above what distributions and containers hand out (systemd's "Users, Groups, UIDs and GIDs").
_FREE_USERS, _MANY = 0x7000_0000, 1 << 24


# Run from their text by a Python that cannot import dare_bench; the last one has ``main``.
_MODULES = ("values", "writer", "reader", "peer", "worker")


def worker(channel: int, limits: Limits, user: int, control: int) -> list[str]:
    """The process of the tests, or without a ``control`` (-1) that of a solution; ``user``: its new user id, or 0."""
    memory, tmp = limits.memory_mb << 20, limits.tmp_mb << 20
    numbers = (channel, control, user, memory, limits.cpu_seconds, limits.processes, tmp, limits.files)
    return [*_python(), _bundle(), *map(str, numbers), *view.packages_folders()]


def command(level: Level, channel: int, filter_fd: int, limits: Limits, user: int, control: int) -> list[str]:
    """The command to start; bubblewrap reads the seccomp filter from ``filter_fd``. ``user``: the user id for code if
    nothing isolates (0: unchanged). ``control``: as in :func:`worker`."""
    if level == "none":
        return [*_python(), source("enter"), "plain", "0", "", "--", *worker(channel, limits, user, control)]
    entries = view.tree(limits.tmp_mb)
    if level == "namespaces":
        mode, user = ("root", free_user()) if is_root() else ("user", 0)
        flat = [word for entry in entries for word in entry]
        start = [*_python(), source("enter"), mode, str(user), calls.program().hex(), *flat, "--"]
        return [*start, *worker(channel, limits, 0, control)]
    user = free_user() if is_root() else 0
    return [*_bubblewrap(entries, filter_fd), *worker(channel, limits, user, control)]


def _bubblewrap(entries: Sequence[view.ViewEntry], filter_fd: int) -> list[str]:
    """Root creates no user namespace: its processes would still be root's, to whom the limit of processes does not
    apply. It keeps only the rights that the worker needs to switch the user, which ends them too."""
    words = [shutil.which("bwrap") or "bwrap", "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    words += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    words += ["--cap-drop", "ALL"]
    if is_root():
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        words += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
    created = {"/"}
    for entry in entries:
        for parent in reversed(PurePosixPath(entry.path).parents):  # by default only root may read them
            if str(parent) not in created:
                created.add(str(parent))
                words += ["--perms", "0755", "--dir", str(parent)]
        created.add(entry.path)
        if entry.kind == "tmp":
            words += ["--perms", "1777", "--size", str(int(entry.value) << 20), "--tmpfs", entry.path]
        elif entry.kind == "mask":
            words += ["--perms", "0755", "--tmpfs", entry.path]
        elif entry.kind == "link":
            words += ["--symlink", entry.value, entry.path]
        else:
            words += ["--ro-bind" if entry.kind == "bind" else "--dev-bind", entry.path, entry.path]
    for path in (*(entry.path for entry in entries if entry.kind == "mask"), "/"):
        words += ["--remount-ro", path]
    if calls.program():
        words += ["--seccomp", str(filter_fd)]
    return [*words, "--chdir", "/tmp", "--"]


def is_root() -> bool:
    return os.geteuid() == 0


def free_user() -> int:
    """A user id for one run: the limit of processes counts all processes of a user, so no two runs share one."""
    user = _FREE_USERS + secrets.randbelow(_MANY)
    ranges = (map(int, line.split()) for line in Path("/proc/self/uid_map").read_text().splitlines())
    is_mapped = any(first <= user < first + count for first, _, count in ranges)  # a container may map few
    return user if is_mapped else _NOBODY


def other_user() -> int:
    """A user for the code if nothing isolates and we are root, so that it can signal no process of ours (root's
    ``kill(-1)`` ends the machine) and write no file of ours. 0 if we are not root, or if others may not read Python."""
    needed = [Path(view.executable()), *map(Path, view.packages_folders())]
    paths = {folder for path in needed for folder in (path, *path.parents)}
    is_readable = all(path.stat().st_mode & 0o001 for path in paths if path.exists())
    return free_user() if is_root() and is_readable else 0


@functools.cache
def source(name: str) -> str:
    """The text of a module of this folder that runs where dare_bench cannot be imported."""
    return Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def _bundle() -> str:
    """A program that creates the modules and calls the last one's ``main``. They are compiled here, by the same Python:
    there it would take half of the start."""
    names = {name: f"{__package__}.{name}" for name in _MODULES}
    compiled = [(named, compile(source(name), named, "exec", dont_inherit=True)) for name, named in names.items()]
    packed = zlib.compress(marshal.dumps(compiled))  # an argument has at most 128 KiB
    modules = binascii.b2a_base64(packed, newline=False)
    return (
        "import binascii, marshal, sys, zlib\nfrom types import ModuleType\n"
        f"package = sys.modules[{__package__!r}] = ModuleType({__package__!r})\n"
        f"for name, code in marshal.loads(zlib.decompress(binascii.a2b_base64({modules!r}))):\n"
        "    module = sys.modules[name] = ModuleType(name)\n"
        "    setattr(package, name.rpartition('.')[2], module)\n"
        "    exec(code, vars(module))\n"
        "arguments, sys.argv[1:] = sys.argv[1:], []\n"
        "module.main(arguments)\n"
    )


def _python() -> list[str]:
    """Isolated, without site-packages and bytecode files, with unbuffered output (a crash would lose it)."""
    return [view.executable(), "-I", "-S", "-B", "-u", "-c"]
