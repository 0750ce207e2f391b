"""Memory in pages of 2 MB, for a process that forks often: a fork copies a table with an entry for each page, and that
takes longer than most of what our forks do (with 1.3 GB of small pages 70 ms, with 1.2 GB of it in large ones 14)."""

import ctypes
import gc
from contextlib import suppress
from pathlib import Path

_SIZE = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1; elsewhere it is refused, and nothing changes


def collapse() -> None:
    """Move what this process holds by now into large pages, where the system has some."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with suppress(OSError):  # no /proc
        for line in Path("/proc/self/maps").read_text().splitlines():
            span, mode, _, _, inode, *_ = line.split()
            begin, end = (int(word, 16) for word in span.split("-"))
            begin, end = -(-begin // _SIZE) * _SIZE, end // _SIZE * _SIZE
            if mode == "rw-p" and inode == "0" and begin < end:
                madvise(begin, end - begin, _MADV_COLLAPSE)


if __name__ == "tests.huge_pages":  # in the server of tests/command.py, which imports this last
    from dare_bench import program
    from dare_bench.harness.lm_eval.task_index import TaskIndex
    from dare_bench.registry import registry

    program.code()  # this and lm-eval's names are read once, not by each command
    with suppress(Exception):  # without lm-eval; a command that asks for its tasks says so
        TaskIndex().entries  # noqa: B018
    registry.cache_clear()  # a command may have plugins
    gc.freeze()  # what it has imported is no garbage; looking through it takes longer than many a command
    collapse()
