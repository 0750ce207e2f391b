"""The descendants of a process, as the kernel lists them, and their memory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

_ANONYMOUS = re.compile(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)
_SHARE = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def children(pid: int) -> list[int]:
    """The child processes of ``pid``; empty where the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    pids: list[int] = []
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                pids += map(int, (thread / "children").read_text().split())
    return pids


def below(pid: int) -> list[int]:
    """All descendants of ``pid``."""
    pids = children(pid)
    for child in pids:  # grows during the loop
        pids += children(child)
    return pids


def memory_over(pid: int, limit_mb: int) -> bool:
    """Do the descendants of ``pid`` together hold more than ``limit_mb`` MB of private memory? Resident sizes count
    pages that forked processes share once for each; only above the limit the more expensive exact share is read."""
    pids = below(pid)
    limit_kb = limit_mb << 10
    return _sum(pids, "status", _ANONYMOUS) > limit_kb and _sum(pids, "smaps_rollup", _SHARE) > limit_kb


def files_over(pid: int, limit: int) -> bool:
    """Have the descendants of ``pid``, in a separate file tree, more than ``limit`` files in its ``/tmp`` or
    ``/dev/shm``? False if /proc does not say, as to root in a container without CAP_SYS_PTRACE."""
    for inside in below(pid)[:1]:
        with suppress(OSError):
            counted = [os.statvfs(f"/proc/{inside}/root{folder}") for folder in ("/tmp", "/dev/shm")]
            return any(each.f_files - each.f_ffree > limit for each in counted)
    return False


def _sum(pids: list[int], file: str, field: re.Pattern[str]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/{file}").read_text()
            total += sum(int(value) for value in field.findall(text))
    return total
