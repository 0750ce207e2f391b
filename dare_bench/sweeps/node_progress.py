"""Progress of a sweep on stderr: a line when a node starts and when it ends, with the remaining time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import mean

from dare_bench.engine.progress import duration
from dare_bench.errors import DareError
from dare_bench.sweeps.record import Record, read
from dare_bench.sweeps.sweep_graph import SweepNode

POLL_INTERVAL = 0.5
"""Seconds between reads of the nodes' files: executors report the end of a job, not its start."""


class SweepProgress:
    """Prints progress. The remaining time is estimated by the mean time of the nodes of a kind in this folder."""

    def __init__(self, out: Path, nodes: Sequence[SweepNode], todo: Collection[str], show: bool) -> None:
        self.out, self.workers = out, 1
        self.stream = sys.stderr if show else None  # the stderr of a node goes into its log
        self.left = {node.id: node for node in nodes if node.id in todo}
        self.total, self.unchanged, self.failed = len(self.left), len(nodes) - len(self.left), 0
        self._started: set[str] = set()
        self._seconds: dict[str, list[float]] = {}
        for node in nodes:
            record = read(out, node)
            if record.status == "done" and (seconds := record.cost.get("seconds")) is not None:
                self._seconds.setdefault(node.kind, []).append(seconds)
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sweep-progress", daemon=True)

    def begin(self, unnamed: Sequence[str]) -> None:
        unchanged = f", {self.unchanged} unchanged" if self.unchanged else ""
        self._print(f"{self.total} nodes to do{unchanged}; logs are in {self.out / 'nodes'}/<node>/log.txt")
        for name in unnamed:
            self._print(f"{name}: no longer in the file; its results are kept")
        if self.stream is not None and self.left:
            self._thread.start()

    def ended(self, record: Record, unchanged: bool = False) -> None:
        """Report the end of a node. ``unchanged``: it was done already."""
        with self._lock:
            self.left.pop(record.id, None)
            seconds = record.cost.get("seconds")
            if record.status == "done" and seconds is not None and not unchanged:
                self._seconds.setdefault(record.kind, []).append(seconds)
            self.failed += record.status in ("failed", "skipped")
            took = " already" if unchanged else f" in {duration(seconds)}" if seconds is not None else ""
            took = "" if record.status == "skipped" else took
            reason = f": {record.error}" if record.error else ""
            count = f"[{self.total - len(self.left)}/{self.total}]"
            failed = f"; {self.failed} failed or skipped" if self.failed else ""
            left = self.seconds_left() if self.left else None
            remaining = f"; about {duration(left)} left" if left is not None else ""
            self._print(f"{count} {record.id}: {record.status}{took}{reason}{failed}{remaining}")

    def close(self) -> None:
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def seconds_left(self) -> float | None:
        """None if no node of a remaining kind has been timed."""
        kinds = [node.kind for node in self.left.values() if node.kind != "board"]
        if not self._seconds.keys() >= set(kinds):
            return None
        return sum(mean(self._seconds[kind]) for kind in kinds) / max(1, self.workers)

    def _watch(self) -> None:
        """Report nodes that have started."""
        while not self._closed.wait(POLL_INTERVAL):
            with self._lock:
                for node in self.left.values():
                    if node.id in self._started:
                        continue
                    try:
                        record = read(self.out, node)
                    except DareError:  # reported by the thread that needs the node
                        continue
                    if record.status == "running":
                        self._started.add(node.id)
                        self._print(f"{node.id}: started in {record.where}")

    def _print(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)
