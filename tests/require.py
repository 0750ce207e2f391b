"""What some tests can use: without it they skip and say why; where DARE_REQUIRE (a,b,c) names it, they fail."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from typing import Any, NoReturn

import pytest


def need(tool: str) -> str:
    """Path of a program, or a skip (a failure where DARE_REQUIRE names it)."""
    found = shutil.which(tool)
    if found is None:
        _without(tool)
    return found


def need_package(name: str) -> Any:
    """A Python package or module of one, or a skip (a failure where DARE_REQUIRE names the package).

    Only what is not installed is skipped: one that is there and cannot be imported raises its own error.
    """
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        _without(package)
    return importlib.import_module(name)


def _without(name: str) -> NoReturn:
    if name in os.environ.get("DARE_REQUIRE", "").split(","):
        pytest.fail(f"{name} is required here (DARE_REQUIRE) and not installed", pytrace=False)
    pytest.skip(f"{name} is not installed", allow_module_level=True)
