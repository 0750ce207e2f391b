# ruff: noqa: PTH102, PTH103, PTH112, PTH120, PTH123, PTH211  (importing pathlib would slow each start)
"""Starts the worker without bubblewrap. Its source is passed to ``python -I -S -c``.

    enter.py MODE USER FILTER [KIND PATH VALUE]... -- PROGRAM ARGUMENT...

MODE ``root`` or ``user``: new namespaces (``user`` by way of a user namespace), a file tree of the entries given (see
view.py), no capabilities, the system calls of FILTER (hex) refused. MODE ``plain``: none of it, but processes that the
program leaves running end with it. Three processes: this one waits outside, the first inside is init, the second the
program.
"""

import ctypes
import os
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PID, _NEW_NET = (
    0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
_NOSUID, _NODEV, _BIND, _RECURSIVE, _PRIVATE, _DETACH = 2, 4, 4096, 16384, 1 << 18, 2
_PDEATHSIG, _SECCOMP, _CAPBSET_DROP, _CHILD_SUBREAPER, _NO_NEW_PRIVS, _CAP_AMBIENT = 1, 22, 24, 36, 38, 47
_AT_FDCWD, _AT_RECURSIVE, _MOUNT_SETATTR, _ATTR_READ_ONLY = -100, 0x8000, 442, 1
_CAPABILITY_VERSION_3 = 0x20080522
_NOBODY = 65534
MOST_FILES = 16_384  # in each file system that can be written: an empty file has no size, but takes kernel memory
_NEAR, _FAR = "/near", "/far"  # while the tree is built: the new and the old root


def main(mode: str, user: int, filter_: bytes, tree: list[tuple[str, str, str]], program: list[str]) -> NoReturn:
    die_with_parent()
    if mode == "plain":
        call(_LIBC.prctl, _CHILD_SUBREAPER, 1, 0, 0, 0)
        plain(program)
    unshare(mode)
    die_with_parent()  # the kernel forgets it when credentials change
    relay(start(lambda: init(user if mode == "root" else 0, filter_, tree, program)))


def plain(program: list[str]) -> NoReturn:
    """Start the program, and kill all that it leaves, both when it ends and on SIGTERM."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def run() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.execv(program[0], program)

    child = start(run, new_session=True)

    def stop(*_: object) -> None:
        kill_all(child)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    relay(child, leave_none=True)


def init(user: int, filter_: bytes, tree: list[tuple[str, str, str]], program: list[str]) -> NoReturn:
    """Process 1 of the new namespaces: it builds the tree, drops its rights, starts the program, and reaps."""
    die_with_parent()
    build(tree)
    give_up(user)
    die_with_parent()

    def run() -> None:
        install(filter_)
        os.execv(program[0], program)

    relay(start(run, new_session=True))


def unshare(mode: str) -> None:
    """New namespaces of every kind but time; mode ``user`` adds a user namespace, in which we may mount."""
    user, group = os.geteuid(), os.getegid()
    flags = _NEW_NS | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS | _NEW_CGROUP
    call(_LIBC.unshare, flags | (_NEW_USER if mode == "user" else 0))
    if mode == "user":
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{_NOBODY} {user} 1")
        write("/proc/self/gid_map", f"{_NOBODY} {group} 1")


def build(tree: list[tuple[str, str, str]]) -> None:
    """Build the file tree and unmount the old one, to which nothing then refers."""
    mount("none", "/", None, _RECURSIVE | _PRIVATE)
    mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for path in (_NEAR, _FAR):
        os.mkdir("/tmp" + path)
    pivot("/tmp", "/tmp" + _FAR)
    os.chdir("/")
    mount("tmpfs", _NEAR, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    for kind, path, value in tree:
        place(kind, path, value)
    for path in (*(path for kind, path, _ in tree if kind == "mask"), "/"):
        read_only(_NEAR + path, recursive=False)
    os.chdir(_NEAR)
    pivot(".", ".")  # the old root now lies on top of the new one
    call(_LIBC.umount2, b".", _DETACH)
    os.chdir("/tmp")


def place(kind: str, path: str, value: str) -> None:
    inside, outside = _NEAR + path, _FAR + path
    os.makedirs(os.path.dirname(inside), exist_ok=True)
    if kind == "link":
        os.symlink(value, inside)
    elif kind in ("tmp", "mask"):
        os.makedirs(inside, exist_ok=True)
        options = f"mode=1777,size={value}m,nr_inodes={MOST_FILES}" if kind == "tmp" else "mode=755,size=1m"
        mount("tmpfs", inside, "tmpfs", _NOSUID | _NODEV, options)
    else:
        if os.path.isdir(outside):
            os.makedirs(inside, exist_ok=True)
        else:
            os.close(os.open(inside, os.O_CREAT | os.O_RDONLY, 0o644))
        mount(outside, inside, None, _BIND | _RECURSIVE)
        if kind == "bind":
            read_only(inside, recursive=True)


def give_up(user: int) -> None:
    """Switch to another user (0: stay, in a user namespace), and drop all capabilities permanently."""
    capability = 0
    while _LIBC.prctl(_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    call(_LIBC.prctl, _CAP_AMBIENT, 4, 0, 0, 0)  # 4: clear all
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    call(_LIBC.capset, struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))
    call(_LIBC.prctl, _NO_NEW_PRIVS, 1, 0, 0, 0)


def install(filter_: bytes) -> None:
    """Install the seccomp filter for this process and all that it starts; none for an unknown machine."""
    if filter_:
        lines = ctypes.create_string_buffer(filter_, len(filter_))
        header = struct.pack("HP", len(filter_) // 8, ctypes.addressof(lines))
        call(_LIBC.prctl, _SECCOMP, 2, header, 0, 0)


def start(run: Callable[[], object], new_session: bool = False) -> int:
    """Fork; the child does ``run`` and never returns."""
    child = os.fork()
    if child:
        return child
    try:
        if new_session:
            os.setsid()
        run()
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    os._exit(126)


def relay(child: int, leave_none: bool = False) -> NoReturn:
    """Reap until ``child`` has ended, and exit with its status (128 + signal, as a shell does)."""
    status = 1
    try:
        pid = 0
        while pid != child:
            pid, wait_status = os.wait()
            status = os.waitstatus_to_exitcode(wait_status)
    finally:
        if leave_none:
            kill_all(child)
        os._exit(status if status >= 0 else 128 - status)


def kill_all(child: int) -> None:
    """Kill the child's session and the processes that left it: as subreaper we inherit every orphan."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    with suppress(OSError):  # no child is left
        while True:
            with open(f"/proc/self/task/{os.getpid()}/children") as file:
                for pid in file.read().split():
                    with suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)
            os.wait()


def die_with_parent() -> None:
    call(_LIBC.prctl, _PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    name = None if kind is None else kind.encode()
    call(_LIBC.mount, os.fsencode(source), os.fsencode(target), name, ctypes.c_ulong(flags), options.encode() or None)


def read_only(path: str, recursive: bool) -> None:
    """Linux 5.12: unlike a remount it keeps the flags that a user namespace may not clear."""
    attributes = struct.pack("=QQQQ", _ATTR_READ_ONLY | _NOSUID | _NODEV, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    call(_LIBC.syscall, _MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(32))


def pivot(new: str, old: str) -> None:
    number = {"x86_64": 155}.get(os.uname().machine, 41)  # the C library has no wrapper; 41: the generic table
    call(_LIBC.syscall, number, os.fsencode(new), os.fsencode(old))


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def call(function: Callable[..., int], *arguments: object) -> None:
    """Call a C function that reports errors by -1 and errno."""
    if function(*arguments) < 0:
        code = ctypes.get_errno()
        name = getattr(function, "__name__", "call")
        raise OSError(code, f"{name}: {os.strerror(code)}")


if __name__ == "__main__":
    _split = sys.argv.index("--")
    _flat = sys.argv[4:_split]
    _tree = list(zip(_flat[::3], _flat[1::3], _flat[2::3], strict=True))
    main(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]), _tree, sys.argv[_split + 1 :])
