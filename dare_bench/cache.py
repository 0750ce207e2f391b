"""The cache folder: what is slow to compute and can be computed again."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any


def cache_dir() -> Path:
    """The cache folder: ``DARE_BENCH_CACHE``, else ``$XDG_CACHE_HOME/dare-bench``, else ``~/.cache/dare-bench``.

    The folder need not exist or be writable: everything in it can be computed again.
    """
    if folder := os.environ.get("DARE_BENCH_CACHE"):
        return Path(folder)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "dare-bench"
    try:
        return Path.home() / ".cache" / "dare-bench"
    except RuntimeError:  # no HOME and no password entry: containers run under bare user ids
        return Path(tempfile.gettempdir()) / f"dare-bench-{os.getuid()}"


def write_cache(path: Path, value: Any) -> None:
    """Write a JSON file of the cache; failure to (a read-only home, a full disk) does not stop a run."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.stem}-", delete=False) as stream:
            json.dump(value, stream)
        Path(stream.name).replace(path)
