"""Progress on stderr: a bar with the time left on a terminal, plain lines elsewhere. Both are measured in forward
passes, those of unfinished samples included: one sample can take minutes, and long ones go first."""

from __future__ import annotations

import sys
import time
from typing import IO

from dare_bench.formatting import duration
from dare_bench.runs.text import counted

_FIRST_WAIT = 5.0
_LONGEST_WAIT = 600.0
# Rows may stop long before their upper bound, which only finished samples show.
_ESTIMATE_SAMPLES = 32
_ESTIMATE_SHARE = 0.1


class Progress:
    """Counts answers and work, and estimates the time left from the work of this session. Shows nothing itself."""

    def start(self, total: int, served: int, total_work: int, served_work: int) -> None:
        """Begin with ``total`` requests, of which ``served`` are answered already."""
        self.total, self.done, self.failed = total, served, 0
        self.total_work, self.done_work = total_work, served_work
        """``done_work`` counts the whole work of finished samples, and the forward passes so far of the others."""
        self._finished_work = served_work
        self._served, self._served_work = served, served_work
        self._started = time.monotonic()
        if served < total:
            self._begin()

    def _begin(self) -> None:
        """Show the display."""

    def forward(self, rows: int) -> None:
        """Count one forward pass of ``rows`` rows, whose samples may be far from finished."""
        self.done_work = min(self.done_work + rows, self.total_work)
        self._show()

    def advance(self, samples: int, work: int, failed: int) -> None:
        """Count finished samples and their whole work; ``failed`` of them have no answer."""
        self.done += samples
        self._finished_work += work
        # A row that stopped early took fewer forward passes than its work.
        self.done_work = max(self.done_work, self._finished_work)
        self.failed += failed
        self._show(last=self.done == self.total)

    def close(self) -> None:
        """Remove the display."""

    def _show(self, last: bool = False) -> None:
        """Show the counts; ``last``: the last time."""

    @property
    def share(self) -> float:
        return self.done_work / self.total_work if self.total_work else 1.0

    @property
    def percent(self) -> str:
        """Percentage of the forward passes; 100% only when every answer is there."""
        return "100%" if self.done == self.total else f"{min(int(100 * self.share), 99)}%"

    @property
    def left(self) -> float | None:
        """Seconds left; None before enough was computed to tell, and while answers are late."""
        worked, late = self.done_work - self._served_work, self.done_work == self.total_work and self.done < self.total
        few = self.done - self._served < _ESTIMATE_SAMPLES
        if late or not worked or (few and worked < _ESTIMATE_SHARE * (self.total_work - self._served_work)):
            return None
        return (time.monotonic() - self._started) * (self.total_work - self.done_work) / worked

    def text(self) -> str:
        left = self.left if self.done < self.total else None
        failed = f", {self.failed} failed" if self.failed else ""
        answers = f"of the forward passes, {self.done}/{self.total} answers{failed}"
        return answers + (f", {duration(left)} left" if left is not None else "")


class Lines(Progress):
    """Plain lines: when it starts, after 5, 15, 35, 75 seconds and so on, and when it ends. The gap doubles up to ten
    minutes, and a line that would repeat the counts of the last one is left out."""

    def __init__(self, stream: IO[str] | None = None) -> None:
        self.stream = stream or sys.stderr

    def _begin(self) -> None:
        self._shown, self._shown_at, self._wait = self._counts, time.monotonic(), _FIRST_WAIT
        print(f"answering {counted(self.total - self.done, 'request')}", file=self.stream, flush=True)

    @property
    def _counts(self) -> tuple[str, int, int]:
        return self.percent, self.done, self.failed

    def _show(self, last: bool = False) -> None:
        now = time.monotonic()
        if (last or now - self._shown_at >= self._wait) and self._counts != self._shown:
            print(f"{self.percent:>4} {self.text()}", file=self.stream, flush=True)
            self._shown, self._shown_at, self._wait = self._counts, now, min(2 * self._wait, _LONGEST_WAIT)


class Bar(Progress):
    """A rich progress bar, redrawn at most eight times a second."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        self.bar = RichProgress(
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

    def _begin(self) -> None:
        self.bar.start()
        self._show()

    def _show(self, last: bool = False) -> None:
        self.bar.update(self._task, completed=self.share, visible=True, percent=self.percent, text=self.text())

    def close(self) -> None:
        self.bar.stop()


def progress_display(show: bool) -> Progress:
    """The display of this process: a bar on a terminal, else lines; nothing if ``show`` is false."""
    if not show:
        return Progress()
    return Bar() if sys.stderr.isatty() else Lines()
