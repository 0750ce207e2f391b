"""Output of commands: text from runs, models and data sets is printed with its control characters escaped."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict
from itertools import accumulate, zip_longest
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
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: Collection[str] = (),
    no_wrap: Collection[str] = (),
    optional: Sequence[str] = (),
) -> Table:
    """A table without lines. Columns in ``right`` are right-aligned; cells wrap, except in the columns ``no_wrap``.
    Where a terminal is too narrow, the first of the columns ``optional`` are left out until the others fit."""
    from rich.table import Table
    from rich.text import Text

    lines = [[visible(cell) for cell in row] for row in rows]
    shown = _fitting([list(columns), *lines], optional, terminal_width())
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in (columns[at] for at in shown):
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in no_wrap)
    for line in lines:
        table.add_row(*(Text(line[at]) for at in shown))
    return table


def _fitting(lines: Sequence[Sequence[str]], optional: Sequence[str], width: int | None) -> list[int]:
    """The numbers of the columns to show; the first line has their names."""
    shown = [*range(len(lines[0]))]
    for name in optional:
        if width is None or sum(max(len(line[at]) for line in lines) + 2 for at in shown) - 2 <= width:
            break
        shown = [at for at in shown if lines[0][at] != name]
    return shown


def terminal_width() -> int | None:
    """The width of the terminal in columns; None where stdout goes to a file or a pipe, which have no width."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def echo(text: object, *, whole: bool = False) -> None:
    """Print text on stdout. On a terminal its lines are wrapped at spaces, unless ``whole``: what is to be copied."""
    shown, width = visible(str(text)), None if whole else terminal_width()
    if width is not None:
        shown = "\n".join(wrapped(line, width) for line in shown.split("\n"))
    print(shown, flush=True)


def wrapped(line: str, width: int) -> str:
    """A line as lines of at most ``width`` characters; a word that is longer, a path for example, stays whole."""
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    lines = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


_LEAST = 20
"""Characters to which a column may be cut."""


def echo_columns(rows: Sequence[Sequence[str]], indent: str = "", *, cut: bool = True) -> None:
    """Print aligned columns on stdout, fast for thousands of rows. On a terminal each row is one line, unless ``cut``
    is False: columns that have little room on the right are left out, and longer cells of the last one are cut. A file
    or a pipe gets all."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    width = terminal_width()
    if cut and width is not None:
        starts = accumulate((size + 2 for size in widths), initial=len(indent))
        fits = [start + min(size, _LEAST) <= width for start, size in zip(starts, widths, strict=False)]
        widths = widths[: max(1, sum(fits))]
    lines = [indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    if cut and width is not None:
        lines = [line if len(line) <= width else f"{line[: width - 1].rstrip()}…" for line in lines]
    if lines:
        echo("\n".join(lines), whole=True)


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
    """Print one line on stderr; a terminal gets it wrapped at spaces."""
    line = visible(str(text)).replace("\n", "␊")
    print(
        wrapped(line, shutil.get_terminal_size().columns) if sys.stderr.isatty() else line, file=sys.stderr, flush=True
    )


def log_to_stderr() -> None:
    """Print the log messages of dare-bench on stderr, without prefixes."""
    logger = logging.getLogger("dare_bench")
    handler = logging.Handler()
    handler.emit = lambda record: echo_error(record.getMessage())  # type: ignore[method-assign]
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
