"""Progress on stderr: a bar with the time left on a terminal, plain lines elsewhere. Both are rate-limited.

Progress and time left are measured in work (forward passes), also of samples that are not finished: they can take
minutes, and long rows go first, so that counts of samples would mislead.
"""

from __future__ import annotations

import sys
import time
from typing import IO

from dare_bench.engine.queue import Silent, Watcher

_LINE_EVERY = 10.0
_LINE_SHARE = 0.05
_LINE_AT_LEAST = 0.5
# Rows may stop long before their bound, which only finished ones show.
_GUESS_SAMPLES = 32
_GUESS_SHARE = 0.1


def duration(seconds: float) -> str:
    """Seconds for people: ``8s``, ``3m 20s``, ``2h 05m``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02d}m"


class Tally:
    """Counts what happened and estimates the time left from the work of this session."""

    def __init__(self) -> None:
        self.begin(0, 0, 0, 0)

    def begin(self, total: int, served: int, total_work: int, served_work: int) -> None:
        self.total, self.done, self.failed = total, served, 0
        self.total_work, self.done_work = total_work, served_work
        """``done_work`` counts finished samples whole and the others by their forward passes so far."""
        self._finished_work = served_work
        self._served, self._served_work = served, served_work
        self._started = time.monotonic()

    def forward(self, rows: int) -> None:
        self.done_work = min(self.done_work + rows, self.total_work)

    def add(self, samples: int, work: int, failed: int) -> None:
        self.done += samples
        self._finished_work += work
        # A row that stopped early took fewer forwards than the work that is done with it.
        self.done_work = max(self.done_work, self._finished_work)
        self.failed += failed

    @property
    def share(self) -> float:
        return self.done_work / self.total_work if self.total_work else 1.0

    @property
    def percent(self) -> str:
        """Of the forward passes; 100 % where every answer is there, and not before."""
        return "100%" if self.done == self.total else f"{min(int(100 * self.share), 99)}%"

    @property
    def left(self) -> float | None:
        """Seconds left; None before enough was computed to tell, and while answers are late."""
        worked, late = self.done_work - self._served_work, self.done_work == self.total_work and self.done < self.total
        few = self.done - self._served < _GUESS_SAMPLES
        if late or not worked or (few and worked < _GUESS_SHARE * (self.total_work - self._served_work)):
            return None
        return (time.monotonic() - self._started) * (self.total_work - self.done_work) / worked

    def text(self) -> str:
        left = self.left
        failed = f", {self.failed} failed" if self.failed else ""
        answers = f"of the forward passes, {self.done}/{self.total} answers{failed}"
        return answers + (f", {duration(left)} left" if left is not None else "")


class Lines:
    """Plain lines: about every 5 % of the work or 10 seconds, never more than two a second."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr
        self.tally = Tally()
        self._shown_at = 0.0
        self._shown_share = 0.0

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None:
        self.tally.begin(total, served, total_work, served_work)
        self._shown_share, self._shown_at = self.tally.share, time.monotonic()
        if served < total:
            print(f"answering {total - served} requests", file=self.stream, flush=True)

    def forward(self, rows: int) -> None:
        self.tally.forward(rows)
        self._show()

    def advance(self, samples: int, work: int, failed: int) -> None:
        self.tally.add(samples, work, failed)
        self._show(last=self.tally.done == self.tally.total)

    def _show(self, last: bool = False) -> None:
        now = time.monotonic()
        since = now - self._shown_at
        further = self.tally.share - self._shown_share >= _LINE_SHARE and since >= _LINE_AT_LEAST
        if further or since >= _LINE_EVERY or last:
            print(f"{self.tally.percent:>4} {self.tally.text()}", file=self.stream, flush=True)
            self._shown_at, self._shown_share = now, self.tally.share

    def close(self) -> None:
        return


class Bar:
    """A rich progress bar, redrawn at most eight times a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self.tally = Tally()
        self.bar = Progress(
            TextColumn("answering"),
            BarColumn(),
            TextColumn("{task.fields[percent]:>4}"),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=8,
            transient=True,
        )
        self._task = self.bar.add_task("answering", total=1.0, percent="", text="", visible=False)

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None:
        self.tally.begin(total, served, total_work, served_work)
        if served < total:
            self.bar.start()
            self._show()

    def advance(self, samples: int, work: int, failed: int) -> None:
        self.tally.add(samples, work, failed)
        self._show()

    def forward(self, rows: int) -> None:
        self.tally.forward(rows)
        self._show()

    def _show(self) -> None:
        tally = self.tally
        self.bar.update(self._task, completed=tally.share, visible=True, percent=tally.percent, text=tally.text())

    def close(self) -> None:
        self.bar.stop()


def watcher(show: bool) -> Watcher:
    """The display for this process: a bar on a terminal, lines off it, nothing when ``show`` is false."""
    if not show:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()
