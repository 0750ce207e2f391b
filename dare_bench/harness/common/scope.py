"""The documents of a run, and of a command. ``--limit`` and ``--samples`` are not part of a run's identity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench import fingerprint
from dare_bench.errors import UsageError


@dataclass(frozen=True)
class Scope:
    """``limit``: the first n documents of each task (below 1: that fraction), None: all. ``samples``: document numbers
    by task; a task that is not named takes all."""

    limit: int | float | None = None
    samples: Mapping[str, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, limit: int | float | None, samples: Mapping[str, Iterable[int]] | None) -> Scope:
        """The scope of these settings; raises UsageError if both are given."""
        if limit is not None and samples is not None:
            raise UsageError("--limit and --samples exclude each other; omit one of them")
        if limit is not None and limit >= 1:
            limit = int(limit)  # lm-eval reads 2.0 as two documents
        named = {task: tuple(sorted(set(ids))) for task, ids in samples.items()} if samples is not None else None
        return cls(limit, named)

    def plain(self) -> dict[str, Any]:
        """As it is stored in JSON."""
        named = {task: list(ids) for task, ids in self.samples.items()} if self.samples is not None else None
        return {"limit": self.limit, "samples": named}

    def text(self) -> str:
        """For messages: ``limit 50``, ``all documents``, ``chosen documents``."""
        if self.samples is not None:
            return "chosen documents"
        return "all documents" if self.limit is None else f"limit {self.limit}"

    def folder_suffix(self) -> str:
        """For the name of a folder: ``first-50``, ``chosen-0f3a9c21bd``."""
        return f"first-{self.limit}" if self.samples is None else f"chosen-{fingerprint.digest(self.plain())}"

    def first(self, total: int | None) -> int | None:
        """How many documents from the start; None: all; -1: a fraction of an unknown number."""
        if self.limit is None:
            return None
        if self.limit >= 1:
            return int(self.limit) if total is None or self.limit < total else None
        if total is None:
            return -1
        return None if self.limit == 1 else math.ceil(total * self.limit)

    def covers(self, other: Scope, totals: Mapping[str, int | None]) -> bool:
        """Does it contain all documents of ``other``? ``totals``: the number of documents of each task, where known."""
        if self == other:
            return True
        return all(self._covers_task(other, task, total) for task, total in totals.items())

    def _covers_task(self, other: Scope, task: str, total: int | None) -> bool:
        ids = self.samples.get(task) if self.samples is not None else None
        other_ids = other.samples.get(task) if other.samples is not None else None
        first, other_first = self.first(total), other.first(total)
        if -1 in (first, other_first):
            return first is None and ids is None
        if other_ids is not None:
            return set(other_ids) <= set(ids) if ids is not None else first is None or all(i < first for i in other_ids)
        if ids is not None:
            count = other_first if other_first is not None else total
            return count is not None and set(range(count)) <= set(ids)
        return first is None or (other_first is not None and other_first <= first)
