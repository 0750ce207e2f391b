"""Folders with task files: those of an installed harness, and those of ``--include-path``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from dare_bench.errors import DareError
from dare_bench.reading import existing


def package_folder(package: str, title: str) -> Path:
    """The folder of an installed harness, without importing it.

    Raises:
        DareError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DareError(f"{title} is not installed; install it with: pip install 'dare-bench[eval]'")
    return Path(next(iter(spec.submodule_search_locations)))


def included_folder(folder: str | Path, files: str, error: type[DareError]) -> Path:
    """The resolved folder of ``--include-path`` with ``files`` (for the message); raises ``error`` if there is none."""
    root = existing(folder)
    if root is None or not root.is_dir():
        raise error(f"--include-path {folder}: no such folder; give a folder with {files}")
    return root.resolve()
