"""Run a function of a test file on several ranks: processes of one gloo group on this machine, a thread each.

    results = on_ranks(function, 2, *arguments)    # what rank 0 and rank 1 returned

The function stands at the top of its file. Arguments and results are what ``torch.load(weights_only=True)`` takes:
numbers, strings, lists, dicts, tensors. When a rank fails or time is up, all are killed and the test fails with what
they wrote last.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from command import forkserver, redirect

GRACE = 5.0
"""Seconds that the others have to end once a rank has failed."""


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 120.0) -> list[Any]:
    """What ``function(*arguments)`` returned on each rank. Raises AssertionError when one failed or time was up."""
    import torch

    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        torch.save(arguments, folder / "arguments.pt")
        file, end = function.__code__.co_filename, time.time() + timeout
        running = [
            forkserver.Process(target=_rank, args=(rank, ranks, file, function.__name__, folder, end))
            for rank in range(ranks)
        ]
        try:
            for process in running:
                process.start()
            trouble = _wait(running, timeout)
        finally:
            for process in running:
                process.kill()
                process.join()
        if trouble:
            logs = "".join(f"\n-- rank {r} --\n{(folder / f'{r}.log').read_text()[-4000:]}" for r in range(ranks))
            raise AssertionError(f"{function.__name__}: {trouble}{logs}")
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _wait(running: Sequence[BaseProcess], timeout: float) -> str:
    """Wait for all ranks; returns what went wrong, or nothing."""
    end, trouble = time.monotonic() + timeout, ""
    while any(process.exitcode is None for process in running):
        failed = [rank for rank, process in enumerate(running) if process.exitcode]
        if failed and not trouble:
            trouble, end = f"rank {failed[0]} failed", min(end, time.monotonic() + GRACE)
        if time.monotonic() > end:
            return trouble or f"not done after {timeout:g} seconds"
        time.sleep(0.02)
    failed = [rank for rank, process in enumerate(running) if process.exitcode]
    return trouble or (f"rank {failed[0]} failed" if failed else "")


def _environment(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun sets, and a group that stays on this machine and off its GPUs."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")
    variables = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "CUDA_VISIBLE_DEVICES": "",
    }
    return {name: str(value) for name, value in variables.items()} | (
        {"GLOO_SOCKET_IFNAME": loopback} if loopback else {}
    )


def _rank(rank: int, ranks: int, file: str, name: str, folder: Path, end: float) -> None:
    """One rank. The group meets by a file: no port that another process could take first."""
    gc.freeze()
    redirect(folder / f"{rank}.log", folder / f"{rank}.log")
    left = max(end - time.time(), 1.0)
    faulthandler.dump_traceback_later(0.9 * left)  # where a rank waits, when time is up
    import torch
    import torch.distributed as dist

    os.environ.update(_environment(rank, ranks))
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=left))
    spec = importlib.util.spec_from_file_location("on_rank", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_rank"] = module
    spec.loader.exec_module(module)
    arguments = torch.load(folder / "arguments.pt", weights_only=True)
    result = getattr(module, name)(*arguments)
    torch.save(result, folder / f"{rank}.pt")
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
