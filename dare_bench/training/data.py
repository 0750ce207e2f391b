"""Training data from where the user says it lies: files, folders, hub data sets, our own tasks. Nothing is dropped.

Rows are read one at a time and only their text is kept. A row that cannot be learned from stops the training before it
begins, with its file and line.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dare_bench.errors import DataError, UsageError
from dare_bench.registry import registry
from dare_bench.training.columns import KEEP, RowFormat, format_of
from dare_bench.training.files import FileRow, RowTable, find_files, open_file, open_hub
from dare_bench.training.rows import Data, Example, Item, Kind, PreferencePair, RewardPrompt, digest
from dare_bench.training.spec import TrainSpec
from dare_bench.training.turns import Malformed

NAMED = 3
"""Malformed rows that an error names; all are counted."""


def read_data(spec: TrainSpec, kind: Kind) -> Data:
    """The rows that a training learns from.

    Args:
        spec: ``data`` (file, folder, pattern or hub id) or ``task``; ``split``; ``rows``: the first so many rows (a
            dialogue with several answers is one row and several examples).
        kind: what the method reads.

    Raises:
        UsageError: a source that is not there, or that holds rows of another kind.
        DataError: malformed rows (the first named by file and line), a damaged file, no rows at all.
    """
    if spec.task is not None:
        return _of_task(spec, kind)
    assert spec.data is not None
    files = find_files(spec.data, spec.split)
    tables = (open_file(file, KEEP) for file in files) if files else iter([open_hub(spec.data, spec.split)])
    rows = tuple(_Reader(kind).read(tables, spec.rows))
    if not rows:
        raise DataError(f"{spec.data} holds no rows; give data that does")
    return Data(kind, rows, digest(rows), spec.data)


class _Reader:
    """Reads tables into rows of one kind; keeps count of what cannot be read."""

    def __init__(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.count = self.bad = 0
        self.named: list[str] = []

    def read(self, tables: Iterator[RowTable], most: int | None) -> list[Item]:
        """Rows of the first ``most`` rows of all tables together; raises DataError when any is malformed."""
        items: list[Item] = []
        for table in tables:
            row_format = format_of(table.columns, self.kind, table.name, readers) if table.columns else None
            for row in islice(table.rows, None if most is None else most - self.count):
                self.count += 1
                items += self._items(row, row_format)
            if self.count == most:
                break
        if self.bad:
            raise DataError(self._complaint())
        return items

    def _items(self, row: FileRow, row_format: RowFormat | None) -> list[Item]:
        try:
            if row.value is None:
                raise Malformed(row.problem)
            if row_format is None:  # the first row that can be read has no columns
                raise Malformed("an object without columns")
            return row_format.read(row.value, row.where)
        except Malformed as error:
            self.bad += 1
            if self.bad <= NAMED:
                self.named.append(f"{row.where}: {error}")
            return []

    def _complaint(self) -> str:
        more = f"; and {self.bad - NAMED} more" if self.bad > NAMED else ""
        return f"{'; '.join(self.named)}{more} ({self.bad} of {self.count} rows malformed; fix or remove them)"


def readers(kind: Kind) -> str:
    """The registered methods that read a kind, in words."""
    names = [entry.name for entry in registry().entries("trainer") if getattr(entry.load(), "reads", None) == kind]
    return f"dare-bench train {' or '.join(names)}" if names else "another method"


def _of_task(spec: TrainSpec, kind: Kind) -> Data:
    """The training split of a registered task: as many different rows as are asked for, made by the seed.

    The target has ``rows(count, seed)`` (``prompt``, ``answer``, and ``doc`` where a reward needs more), perhaps
    ``pairs(count, seed)`` (``prompt``, ``chosen``, ``rejected``), ``canvas``, and ``default``, the rows taken when none
    are asked for.
    """
    assert spec.task is not None
    source: Any = registry().get("training_data", spec.task).load()
    make = getattr(source, "pairs" if kind == "pairs" else "rows", None)
    if make is None:
        raise UsageError(f"{spec.task} makes no preference pairs; give another --task, or --data")
    documents = make(source.default if spec.rows is None else spec.rows, spec.seed)
    rows = tuple(_task_row(row, kind, spec.task, f"{spec.task}:{i}") for i, row in enumerate(documents, 1))
    if not rows:
        raise DataError(f"{spec.task} made no rows")
    return Data(kind, rows, digest(rows), spec.task, source.canvas)


def _task_row(row: dict[str, Any], kind: Kind, task: str, where: str) -> Item:
    if kind == "examples":
        return Example(row["prompt"], row["answer"], where)
    if kind == "pairs":
        return PreferencePair(row["prompt"], row["chosen"], row["rejected"], where)
    return RewardPrompt(row["prompt"], row["answer"], task, where, row.get("doc", {}))
