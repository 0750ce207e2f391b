"""The processes below one of ours, as the kernel lists them: their memory, and their end."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_ANONYMOUS = re.compile(r"^(?:RssAnon|RssShmem):\s+(\d+) kB", re.MULTILINE)
_SHARE = re.compile(r"^Pss_(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)


def children(pid: int) -> list[int]:
    """The child processes of ``pid``; empty where the kernel does not list them (CONFIG_PROC_CHILDREN)."""
    found: list[int] = []
    threads: list[Path] = []
    with suppress(OSError):  # it has ended
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    for thread in threads:
        with suppress(OSError):
            found += [int(word) for word in (thread / "children").read_text().split()]
    return found


def below(pid: int) -> list[int]:
    """All descendants of ``pid``."""
    found = children(pid)
    for child in found:  # grows while it is read
        found += children(child)
    return found


def memory_over(pid: int, limit_mb: int) -> bool:
    """The descendants of ``pid`` together hold more than ``limit_mb`` MB of memory of their own.

    Resident sizes count pages that forked processes share once for each; only when they are over the limit is the
    dearer exact share asked for.
    """
    pids = below(pid)
    limit_kb = limit_mb << 10
    return _sum(pids, "status", _ANONYMOUS) > limit_kb and _sum(pids, "smaps_rollup", _SHARE) > limit_kb


def _sum(pids: list[int], file: str, field: re.Pattern[str]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/{file}").read_text()
            total += sum(int(value) for value in field.findall(text))
    return total
