"""Run a function of a test file on several ranks: processes of one gloo group on this machine, a thread each.

    found = on_ranks(function, 2, *arguments)    # what rank 0 and rank 1 returned

The function stands at the top of its file. Arguments and results are what ``torch.load(weights_only=True)`` takes:
numbers, strings, lists, dicts, tensors. When a rank fails or time is up, all are killed and the test fails with what
they wrote last.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

GRACE = 5.0
"""Seconds that the others have to end once a rank has failed."""


def on_ranks(function: Callable[..., Any], ranks: int, *arguments: Any, timeout: float = 120.0) -> list[Any]:
    """What ``function(*arguments)`` returned on each rank. Raises AssertionError when one failed or time was up."""
    import torch

    with tempfile.TemporaryDirectory(prefix="ranks-") as name:
        folder = Path(name)
        torch.save(arguments, folder / "arguments.pt")
        file = function.__code__.co_filename
        command = [sys.executable, __file__, file, function.__name__, name, str(time.time() + timeout)]
        running = []
        try:
            for rank in range(ranks):
                with (folder / f"{rank}.log").open("wb") as log:
                    running.append(
                        subprocess.Popen(command, env=_environment(rank, ranks), stdout=log, stderr=subprocess.STDOUT)
                    )
            trouble = _wait(running, timeout)
        finally:
            for process in running:
                process.kill()
                process.wait()
        if trouble:
            logs = "".join(f"\n-- rank {r} --\n{(folder / f'{r}.log').read_text()[-4000:]}" for r in range(ranks))
            raise AssertionError(f"{function.__name__}: {trouble}{logs}")
        return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(ranks)]


def _environment(rank: int, ranks: int) -> dict[str, str]:
    """What torchrun sets, and a group that stays on this machine and off its GPUs."""
    loopback = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), "")
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    return {**os.environ, **own, **({"GLOO_SOCKET_IFNAME": loopback} if loopback else {})}


def _wait(running: list[subprocess.Popen[bytes]], timeout: float) -> str:
    """Wait for all ranks; returns what went wrong, or nothing."""
    end, trouble = time.monotonic() + timeout, ""
    while any(process.poll() is None for process in running):
        failed = [rank for rank, process in enumerate(running) if process.poll()]
        if failed and not trouble:
            trouble, end = f"rank {failed[0]} failed", min(end, time.monotonic() + GRACE)
        if time.monotonic() > end:
            return trouble or f"not done after {timeout:g} seconds"
        time.sleep(0.02)
    failed = [rank for rank, process in enumerate(running) if process.returncode]
    return trouble or (f"rank {failed[0]} failed" if failed else "")


def _main(file: str, name: str, folder: str, end: str) -> None:
    """One rank. The group meets by a file: no port that another process could take first."""
    left = max(float(end) - time.time(), 1.0)
    faulthandler.dump_traceback_later(0.9 * left)  # where a rank waits, when time is up
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(f"{folder}/store", ranks)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=left))
    spec = importlib.util.spec_from_file_location("on_rank", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_rank"] = module
    spec.loader.exec_module(module)
    arguments = torch.load(f"{folder}/arguments.pt", weights_only=True)
    found = getattr(module, name)(*arguments)
    torch.save(found, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    _main(*sys.argv[1:])
