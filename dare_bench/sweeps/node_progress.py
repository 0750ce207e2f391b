"""Progress of a sweep on stderr: a line when a node ends, with the remaining time. Its process says that it starts."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import mean

from dare_bench.formatting import duration
from dare_bench.sweeps.record import Record, read
from dare_bench.sweeps.sweep_graph import SweepNode


class SweepProgress:
    """Prints progress. The remaining time is estimated by the mean time of the nodes of a kind in this folder."""

    def __init__(self, out: Path, nodes: Sequence[SweepNode], todo: Collection[str], show: bool) -> None:
        self.out, self.workers = out, 1
        self.stream = sys.stderr if show else None  # the stderr of a node goes into its log
        self.left = {node.id: node for node in nodes if node.id in todo}
        self.total, self.unchanged, self.failed = len(self.left), len(nodes) - len(self.left), 0
        self._seconds: dict[str, list[float]] = {}
        for node in nodes:
            self._timed(read(out, node))

    def begin(self, unnamed: Sequence[str]) -> None:
        unchanged = f", {self.unchanged} unchanged" if self.unchanged else ""
        self._print(f"{self.total} nodes to do{unchanged}; logs are in {self.out / 'nodes'}/<node>/log.txt")
        for name in unnamed:
            self._print(f"{name}: no longer in the file; its results are kept")

    def ended(self, record: Record) -> None:
        """Report the end of a node."""
        self.left.pop(record.id, None)
        self._timed(record)
        self.failed += record.status in ("failed", "skipped")
        took = f" in {duration(record.seconds)}" if record.starts and record.status != "skipped" else ""
        reason = f": {record.error}" if record.error else ""
        count = f"[{self.total - len(self.left)}/{self.total}]"
        failed = f"; {self.failed} failed or skipped" if self.failed else ""
        left = self.seconds_left() if self.left else None
        remaining = f"; about {duration(left)} left" if left is not None else ""
        self._print(f"{count} {record.id}: {record.status}{took}{reason}{failed}{remaining}")

    def seconds_left(self) -> float | None:
        """None if no node of a remaining kind has been timed."""
        kinds = [node.kind for node in self.left.values() if node.kind != "board"]
        if not self._seconds.keys() >= set(kinds):
            return None
        return sum(mean(self._seconds[kind]) for kind in kinds) / max(1, self.workers)

    def _timed(self, record: Record) -> None:
        if record.status == "done":
            self._seconds.setdefault(record.kind, []).append(record.seconds)

    def _print(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)
