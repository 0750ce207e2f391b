"""What a sweep tells on stderr: a line when a node begins and when it ends, with the time that is left."""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection, Sequence
from pathlib import Path

from dare_bench.engine.progress import duration
from dare_bench.errors import DareError
from dare_bench.sweeps.graph import SweepNode
from dare_bench.sweeps.record import Record, read

LOOK_EVERY = 0.5
"""Seconds between looks at the nodes' files: executors tell what ends, and not what begins."""


class SweepProgress:
    """Counts and tells. Time left: for each kind, the mean seconds of those measured in this folder, per worker."""

    def __init__(self, out: Path, nodes: Sequence[SweepNode], todo: Collection[str], show: bool, workers: int) -> None:
        self.out, self.workers = out, workers
        self.stream = sys.stderr if show else None  # a node's own stderr goes into its log
        self.left = {node.id: node for node in nodes if node.id in todo}
        self.total, self.kept, self.failed = len(self.left), len(nodes) - len(self.left), 0
        self._begun: set[str] = set()
        self._took: dict[str, list[float]] = {}
        for node in nodes:
            record = read(out, node)
            if record.status == "done" and record.attempts:
                self._took.setdefault(node.kind, []).append(record.attempts[-1].seconds or 0.0)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look, name="sweep-progress", daemon=True)

    def begin(self, unnamed: Sequence[str]) -> None:
        kept = f", {self.kept} stay as they are" if self.kept else ""
        self._say(f"{self.total} nodes to do{kept}; logs are in {self.out / 'nodes'}/<node>/log.txt")
        for name in unnamed:
            self._say(f"{name}: not in the file any more; it is kept as it is")
        if self.stream is not None and self.left:
            self._thread.start()

    def ended(self, record: Record, unchanged: bool = False) -> None:
        """A node is over; ``unchanged``: there was nothing to do."""
        with self._lock:
            self.left.pop(record.id, None)
            seconds = record.attempts[-1].seconds if record.attempts else None
            if record.status == "done" and seconds is not None and not unchanged:
                self._took.setdefault(record.kind, []).append(seconds)
            self.failed += record.status in ("failed", "skipped")
            took = " already" if unchanged else f" in {duration(seconds)}" if seconds is not None else ""
            took = "" if record.status == "skipped" else took
            why = f": {record.error}" if record.error else ""
            place = f"[{self.total - len(self.left)}/{self.total}]"
            self._say(f"{place} {record.id}: {record.status}{took}{why}{self._rest()}")

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def seconds_left(self) -> float | None:
        """None as long as a kind of node that is left was never measured."""
        total = 0.0
        for node in self.left.values():
            took = self._took.get(node.kind)
            if took is None and node.kind != "board":
                return None
            total += sum(took) / len(took) if took else 0.0
        return total / max(1, self.workers)

    def _rest(self) -> str:
        failed = f"; {self.failed} without success" if self.failed else ""
        left = self.seconds_left() if self.left else None
        return failed + (f"; about {duration(left)} left" if left is not None else "")

    def _look(self) -> None:
        """Tell of nodes that say they are running."""
        while not self._over.wait(LOOK_EVERY):
            with self._lock:
                for node in self.left.values():
                    if node.id in self._begun:
                        continue
                    try:
                        record = read(self.out, node)
                    except DareError:  # reported where the node is read
                        continue
                    if record.status == "running":
                        self._begun.add(node.id)
                        self._say(f"{node.id}: begun in {record.attempts[-1].where}")

    def _say(self, text: str) -> None:
        if self.stream is not None:
            print(text, file=self.stream, flush=True)
