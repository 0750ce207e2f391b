"""Tools that some tests can use: without one they skip and say why; named in DARE_REQUIRE, its absence is a failure."""

from __future__ import annotations

import os
import shutil

import pytest


def need(tool: str) -> str:
    """Path of a program, or a skip (a failure where DARE_REQUIRE names it)."""
    found = shutil.which(tool)
    if found:
        return found
    if tool in os.environ.get("DARE_REQUIRE", "").split(","):
        pytest.fail(f"{tool} is required here (DARE_REQUIRE) and not installed")
    pytest.skip(f"{tool} is not installed")
