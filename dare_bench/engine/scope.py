"""Which documents a run holds and which are asked for. ``--limit`` and ``--samples`` are not part of its identity."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dare_bench.errors import UsageError


@dataclass(frozen=True)
class Scope:
    """``limit``: the first n documents of each task (below 1: that share of them), None: all. ``samples``: these
    document numbers, by task; a task that is not named there takes all."""

    limit: int | float | None = None
    samples: Mapping[str, tuple[int, ...]] | None = None

    @classmethod
    def of(cls, limit: int | float | None, samples: Mapping[str, Iterable[int]] | None) -> Scope:
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

    def _first(self, total: int | None) -> int | None:
        """How many documents from the start; None for all."""
        if self.limit is None:
            return None
        if self.limit >= 1:
            return int(self.limit) if total is None or self.limit < total else None
        if total is None:
            return -1
        return None if self.limit == 1 else math.ceil(total * self.limit)

    def covers(self, other: Scope, totals: Mapping[str, int | None]) -> bool:
        """Is every document of ``other`` in here? ``totals``: how many documents each task has, where known."""
        if self == other:
            return True
        return all(self._covers_task(other, task, total) for task, total in totals.items())

    def _covers_task(self, other: Scope, task: str, total: int | None) -> bool:
        mine = self.samples.get(task) if self.samples is not None else None
        theirs = other.samples.get(task) if other.samples is not None else None
        here, there = self._first(total), other._first(total)
        if -1 in (here, there):  # a share of an unknown number
            return here is None and mine is None
        if theirs is not None:
            return set(theirs) <= set(mine) if mine is not None else here is None or all(i < here for i in theirs)
        if mine is not None:
            count = there if there is not None else total
            return count is not None and set(range(count)) <= set(mine)
        return here is None or (there is not None and there <= here)


def joined(existing: Scope, requested: Scope, totals: Mapping[str, int | None]) -> Scope:
    """What a finished run that holds ``existing`` shall hold when ``requested`` is asked for: never less than before.

    Raises:
        UsageError: neither contains the other, and they have no common form.
    """
    if existing.covers(requested, totals):
        return existing
    if requested.covers(existing, totals):
        return requested
    if existing.samples is not None and requested.samples is not None:
        union: dict[str, tuple[int, ...]] = {}
        # A task that only one of them names is covered whole by the other.
        for task in existing.samples.keys() & requested.samples.keys():
            union[task] = tuple(sorted({*existing.samples[task], *requested.samples[task]}))
        return Scope(None, union)
    raise UsageError(
        f"this run holds {existing.text()}, which neither contains nor is contained in {requested.text()}; "
        "add --fresh for a run of its own"
    )
