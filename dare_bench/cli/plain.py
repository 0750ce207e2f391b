"""The console that verbs print their tables with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

PLAIN_WIDTH = 200
"""Columns of a table that goes to a file or pipe, where rich would take 80."""


def plain_console() -> Console:
    """A console on stdout that prints text as it is: no markup in it, and no colours but those asked for."""
    from rich.console import Console

    return Console(markup=False, highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
