"""Output of commands: text from runs, models and data sets is printed with its control characters escaped.

Tables and styled text go through :func:`plain_console`, lines and columns through :func:`echo`, :func:`echo_columns`
and :func:`echo_error`, JSON through :func:`echo_json`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from dare_bench.runs.text import visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from dare_bench.engine.soundness import Check

Finding = TypeVar("Finding", bound=Any)
PLAIN_WIDTH = 200
"""Width in columns of a table that goes to a file or pipe (rich's default is 80)."""


def plain_console(width: int = PLAIN_WIDTH) -> Console:
    """A console on stdout without markup, with only the requested colors, and with control characters escaped.
    ``width`` applies to a file or a pipe."""
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Visible(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else Segment(visible(part.text), part.style)

    return Visible(markup=False, highlight=False, width=None if sys.stdout.isatty() else width)


def plain_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), no_wrap: Collection[str] = ()
) -> Table:
    """A table without lines. Columns in ``right`` are right-aligned; cells wrap, except in the columns ``no_wrap``."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in no_wrap)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def echo(text: object) -> None:
    """Print text on stdout."""
    print(visible(str(text)), flush=True)


def echo_columns(rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """Print aligned columns on stdout, fast for thousands of rows."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    if rows:
        echo("\n".join(indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows))


def echo_json(value: Any) -> None:
    """Print JSON on stdout."""
    print(visible_json(value))


def echo_each(findings: Iterable[Finding], line: Callable[[Finding], str], *, json: bool) -> list[Finding]:
    """Print a line for each finding (a dataclass) as soon as it is known, or all as JSON at the end; returns them."""
    known = []
    for finding in findings:
        known.append(finding)
        if not json:
            echo(line(finding))
    if json:
        echo_json([asdict(finding) for finding in known])
    return known


def echo_checks(checks: Iterable[Check], *, json: bool) -> None:
    """Print a line for each check as soon as it is done, or all as JSON; raises typer.Exit(1) if one failed."""
    status = {True: "pass", False: "FAIL", None: "skip"}
    lines = echo_each(
        checks, lambda check: " ".join(f"{status[check.passed]}  {check.name}: {check.detail}".splitlines()), json=json
    )
    if any(check.passed is False for check in lines):
        raise typer.Exit(1)


def echo_error(text: object) -> None:
    """Print one line on stderr."""
    print(visible(str(text)).replace("\n", "␊"), file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Print the log messages of dare-bench on stderr, without prefixes."""
    logger = logging.getLogger("dare_bench")
    handler = logging.Handler()
    handler.emit = lambda record: echo_error(record.getMessage())  # type: ignore[method-assign]
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
