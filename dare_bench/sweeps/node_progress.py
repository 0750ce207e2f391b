"""Progress of a sweep on stderr: a line when a node ends. Its process says that it starts."""

from __future__ import annotations

import sys
import time

from dare_bench.formatting import duration
from dare_bench.sweeps.record import Record


class SweepProgress:
    """Prints the end of each of ``total`` nodes, if ``show``."""

    def __init__(self, total: int, show: bool) -> None:
        self.total, self.ended, self.failed, self.started = total, 0, 0, time.monotonic()
        self.stream = sys.stderr if show else None  # the stderr of a node goes into its log

    def say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)

    def end(self, record: Record) -> None:
        self.ended += 1
        self.failed += record.status in ("failed", "skipped")
        took = f" in {duration(record.seconds)}" if record.starts and record.status != "skipped" else ""
        reason = f": {record.error}" if record.error else ""
        failed = f"; {self.failed} failed or skipped" if self.failed else ""
        seconds = (time.monotonic() - self.started) / self.ended * (self.total - self.ended)
        left = f"; about {duration(seconds)} left" if seconds else ""
        self.say(f"[{self.ended}/{self.total}] {record.id}: {record.status}{took}{reason}{failed}{left}")
