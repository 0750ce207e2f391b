"""Output of commands: text from runs, models and data sets is printed with its control characters escaped.

Tables and text go through :func:`plain_console`, lines through :func:`say` and :func:`tell`, JSON through
:func:`say_json`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dare_bench.runs.text import visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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
    columns: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[str] = (), whole: Collection[str] = ()
) -> Table:
    """A table without lines; long cells wrap, except in the columns ``whole``."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    return table


def say(text: object) -> None:
    """A line on stdout."""
    print(visible(str(text)), flush=True)


def say_json(value: Any) -> None:
    """JSON on stdout."""
    print(visible_json(value))


def tell(text: object) -> None:
    """A line on stderr."""
    print(visible(str(text)).replace("\n", "␊"), file=sys.stderr, flush=True)


def log_to_stderr() -> None:
    """Our own log messages, as they are, on stderr."""
    logger = logging.getLogger("dare_bench")
    handler = logging.Handler()
    handler.emit = lambda record: tell(record.getMessage())  # type: ignore[method-assign]
    logger.handlers = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
