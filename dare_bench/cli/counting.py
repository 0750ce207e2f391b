"""Progress of work that is counted, on stderr: a bar on a terminal, now and then a line off it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dare_bench.cli.plain import tell

LINE_EVERY = 10.0
"""Seconds between lines; what is done sooner says nothing."""
Told = Callable[[int, int], None]


@contextmanager
def counting(what: str, after: str) -> Iterator[Told]:
    """Gives a function that is told (done, all) of ``what``; ``after`` is what goes on when all are done."""
    with _bar(what, after) if sys.stderr.isatty() else _lines(what, after) as count:
        yield count


@contextmanager
def _lines(what: str, after: str) -> Iterator[Told]:
    shown_at = time.monotonic()

    def count(done: int, total: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= LINE_EVERY:
            shown_at = time.monotonic()
            tell(f"{done}/{total} {what}{f'; {after}' if done == total else ''}")

    yield count


@contextmanager
def _bar(what: str, after: str) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)

        def count(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=after if done == total else what)

        yield count
