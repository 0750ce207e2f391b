"""Progress of countable work, on stderr: a bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dare_bench.cli.plain import tell

LINE_EVERY = 10.0
"""Seconds between lines; faster work prints none."""
Count = Callable[[int, int], None]


@contextmanager
def counting(what: str, after: str) -> Iterator[Count]:
    """Yields a function to call with (done, total) of ``what``; ``after`` describes the work when all are done."""
    with _bar(what, after) if sys.stderr.isatty() else _lines(what, after) as count:
        yield count


@contextmanager
def _lines(what: str, after: str) -> Iterator[Count]:
    shown_at = time.monotonic()

    def count(done: int, total: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= LINE_EVERY:
            shown_at = time.monotonic()
            tell(f"{done}/{total} {what}{f'; {after}' if done == total else ''}")

    yield count


@contextmanager
def _bar(what: str, after: str) -> Iterator[Count]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=after if done == total else what)

        yield count
