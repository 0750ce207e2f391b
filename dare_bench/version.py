"""The version of dare-bench, and the folder it is installed in."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.1.0"

PACKAGE = Path(__file__).parent
