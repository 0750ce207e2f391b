"""Training data from files, folders, hub data sets, memory, or the tasks of dare-bench. A malformed row is an error
that names its place; no row is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from dare_bench.errors import DataError, UsageError
from dare_bench.registry import registry
from dare_bench.training.columns import KEEP, format_of
from dare_bench.training.files import RowTable, open_file
from dare_bench.training.methods import readers
from dare_bench.training.rows import Data, Example, Item, Kind, PreferencePair, digest
from dare_bench.training.sources import find_files, open_hub
from dare_bench.training.spec import TrainSpec
from dare_bench.training.turns import Malformed
from dare_bench.types import RewardPrompt

MAX_LISTED = 3
"""Malformed rows that an error lists; all are counted."""


def read_data(spec: TrainSpec, kind: Kind, memory: RowTable | None = None) -> Data:
    """The rows of a training.

    Args:
        spec: ``data`` (file, folder, pattern or hub id) or ``task`` (ours, or a name of a hub data set); ``split``;
            ``rows``: read the first N rows (a dialogue with several answers is one row and several examples).
        kind: the kind of rows that the method reads.
        memory: rows in memory (:func:`~dare_bench.training.sources.open_memory`), of which ``data`` is only the name.

    Raises:
        UsageError: a missing source, or one with rows of another kind.
        DataError: malformed rows (the first ones listed by file and line), a damaged file, no rows.
    """
    known = hub_data(spec.task)
    if spec.task is not None and known is None:
        return _from_task(spec, kind)
    name = str(spec.data if known is None else known.data)
    own_rewards = bool(spec.options.get("reward_weights"))
    tables = _tables(name, spec.split, None if own_rewards else KEEP) if memory is None else iter([memory])
    rows = tuple(_read(tables, kind, spec.rows, own_rewards))
    if not rows:
        raise DataError(f"{name} holds no rows; give data with rows")
    return Data(kind, rows, digest(rows), name)


def check_columns(spec: TrainSpec, kind: Kind, memory: RowTable | None = None) -> None:
    """Refuse rows of another kind by the columns of the first file; data sets of the hub are not opened. Raises as
    :func:`read_data`."""
    any_prompt = bool(spec.options.get("reward_weights"))
    if memory is None and spec.data is not None and (files := find_files(spec.data, spec.split)):
        memory = open_file(files[0], None if any_prompt else KEEP)
    if memory is not None and memory.columns:
        format_of(memory.columns, kind, memory.name, readers, any_prompt)


def hub_data(task: str | None) -> Any:
    """The hub data set that a task names: ``data``, its id, and ``count``, its training rows. None for a task that
    generates its rows. Raises UnknownNameError."""
    source = None if task is None else registry().get("training_data", task).load()
    return source if hasattr(source, "data") else None


def _tables(data: str, split: str, keep: frozenset[str] | None) -> Iterator[RowTable]:
    if files := find_files(data, split):
        return (open_file(file, keep) for file in files)
    return iter([open_hub(data, split)])


def _read(tables: Iterator[RowTable], kind: Kind, limit: int | None, any_prompt: bool) -> Iterator[Item]:
    """The items of the first ``limit`` rows of all tables together; raises DataError at the end if any is malformed."""
    count, malformed = 0, list[str]()
    for table in tables:
        row_format = format_of(table.columns, kind, table.name, readers, any_prompt) if table.columns else None
        for row in islice(table.rows, None if limit is None else limit - count):
            count += 1
            try:
                if row.value is None or row_format is None:  # without columns: the first readable row has none
                    raise Malformed(row.problem or "an object without columns")
                yield from row_format.read(row.value, row.where)
            except Malformed as error:
                malformed.append(f"{row.where}: {error}")
        if count == limit:
            break
    if malformed:
        more = f"; and {len(malformed) - MAX_LISTED} more" if len(malformed) > MAX_LISTED else ""
        listed = "; ".join(malformed[:MAX_LISTED])
        raise DataError(f"{listed}{more} ({len(malformed)} of {count} rows malformed; fix or remove them)")


def _from_task(spec: TrainSpec, kind: Kind) -> Data:
    """The training split of a registered task: ``spec.rows`` different rows, generated from the seed. The target has
    ``rows(count, seed)`` (``prompt``, ``answer``, and optionally ``doc`` for a reward), optionally ``pairs(count,
    seed)`` (``prompt``, ``chosen``, ``rejected``), ``canvas``, and ``default``, the default count."""
    assert spec.task is not None
    source: Any = registry().get("training_data", spec.task).load()
    make = getattr(source, "pairs" if kind == "pairs" else "rows", None)
    if make is None:
        raise UsageError(f"{spec.task} has no preference pairs; give another --task, or --data")
    documents = make(source.default if spec.rows is None else spec.rows, spec.seed)
    rows = tuple(_task_row(row, kind, spec.task, f"{spec.task}:{i}") for i, row in enumerate(documents, 1))
    if not rows:
        raise DataError(f"{spec.task} has no rows")
    return Data(kind, rows, digest(rows), spec.task, source.canvas)


def _task_row(row: dict[str, Any], kind: Kind, task: str, where: str) -> Item:
    if kind == "examples":
        return Example(row["prompt"], row["answer"], where)
    if kind == "pairs":
        return PreferencePair(row["prompt"], row["chosen"], row["rejected"], where)
    return RewardPrompt(row["prompt"], row["answer"], task, where, row.get("doc", {}))
