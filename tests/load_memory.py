"""Host memory while a checkpoint is opened, as the process that opens it measures it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from dare_bench.loading import load


def measure(folder: Path, dtype: str, out: Path) -> None:
    """Write the bytes of the opened network, and by how much the peak of the resident memory (VmHWM, with pages of
    mapped files) grew, to ``out`` as JSON."""
    load("tiny-llada", device="cpu", dtype=dtype)  # imports what opening needs
    before = _peak()
    network = load(folder, device="cpu", dtype=dtype).network
    held = sum(weight.nbytes for weight in network.state_dict().values())
    out.write_text(json.dumps({"network": held, "growth": _peak() - before}))


def _peak() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024
