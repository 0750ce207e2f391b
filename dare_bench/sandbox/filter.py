"""The system calls that generated code may not make, as a seccomp filter (seccomp(2), a classic BPF program).

It closes what namespaces and limits leave open: new user namespaces (and with them mounts of any size), and memory that
no limit counts (memfd, System V segments). It also closes other address families (a network namespace does not block
vsock), access to other processes, and the parts of the kernel that allowed escapes before.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, little endian
_NEW_NAMESPACES = 0x7E020000
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6: the last two reach nothing, but fail as programs expect

# Since Linux 5.1 new calls have one number on all architectures.
_COMMON = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432,
    "pidfd_getfd": 438, "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip
_CLONE3 = 435
# Of each machine: audit architecture, clone, socket, and the refused calls whose numbers differ.
_MACHINES: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "x86_64": (0xC000003E, 56, 41, {
        "shmget": 29, "msgget": 68, "ptrace": 101, "pivot_root": 155, "chroot": 161, "mount": 165, "umount2": 166,
        "init_module": 175, "delete_module": 176, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
        "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319, "bpf": 321,
        "userfaultfd": 323,
    }),
    "aarch64": (0xC00000B7, 220, 198, {
        "shmget": 194, "msgget": 186, "ptrace": 117, "pivot_root": 41, "chroot": 51, "mount": 40, "umount2": 39,
        "init_module": 105, "delete_module": 106, "kexec_load": 104, "add_key": 217, "request_key": 218, "keyctl": 219,
        "unshare": 97, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
        "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280,
        "userfaultfd": 282,
    }),
}  # fmt: skip


def refused_calls(machine: str | None = None) -> dict[str, int]:
    """Names and numbers of the calls that fail with EPERM on ``machine`` (this one); empty for an unknown machine."""
    known = _MACHINES.get(machine or platform.machine())
    return {} if known is None else {**known[3], **_COMMON}


def program(machine: str | None = None) -> bytes:
    """The filter as an array of ``struct sock_filter``; empty for an unknown machine."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        return b""
    architecture, clone, socket, _ = _MACHINES[machine]
    refuse = _line(_RETURN, _ERRNO | errno.EPERM)
    lines = [_line(_LOAD, _ARCHITECTURE), _line(_EQUAL, architecture, 1, 0), _line(_RETURN, _KILL)]
    lines.append(_line(_LOAD, _NUMBER))
    if machine == "x86_64":  # the x32 numbers would bypass the list
        lines += [_line(_AT_LEAST, 0x40000000, 0, 1), refuse]
    for number in sorted(refused_calls(machine).values()):
        lines += [_line(_EQUAL, number, 0, 1), refuse]
    # Its flags are behind a pointer, which a filter cannot follow; the C library then falls back to clone.
    lines += [_line(_EQUAL, _CLONE3, 0, 1), _line(_RETURN, _ERRNO | errno.ENOSYS)]
    lines += [_line(_EQUAL, clone, 0, 4), _line(_LOAD, _FIRST_ARGUMENT), _line(_ANY_BIT, _NEW_NAMESPACES, 0, 1)]
    lines += [refuse, _line(_RETURN, _ALLOW)]
    lines += [_line(_EQUAL, socket, 0, 5), _line(_LOAD, _FIRST_ARGUMENT)]
    lines += [_line(_EQUAL, family, left, 0) for left, family in zip((3, 2, 1), _FAMILIES, strict=True)]
    lines += [refuse, _line(_RETURN, _ALLOW)]
    return b"".join(lines)


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
