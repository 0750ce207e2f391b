"""Are the names in a sweep known? Asked of all nodes to be done before the first of them starts."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import Any

from dare_bench.config import run_spec
from dare_bench.engine.hints import check
from dare_bench.engine.plan import plan
from dare_bench.errors import CheckpointError, DareError, UnknownNameError, UsageError
from dare_bench.loading import here
from dare_bench.registry import registry
from dare_bench.sweeps.graph import SweepNode

_BOARDS = "dare_bench.leaderboards.board"
"""Reached by name, as the builder is: boards stand on runs alone."""


def refuse_unknown(nodes: Iterable[SweepNode], todo: Collection[str]) -> None:
    """Refuse what nobody knows: a model that is neither bundled, nor a folder, nor written as a hub id (hubs are not
    asked), a task, a board. What else a node may fail at is its own failure, and keeps no other from being done.

    Raises:
        UsageError: the first such name, with the node that needs it.
    """
    seen: set[str] = set()
    for node in nodes:
        if node.id not in todo:
            continue
        asked = {name: value for name, value in node.asked.items() if name not in ("model", "adapter")}
        try:
            for name in ("model", "adapter"):
                if (checkpoint := node.asked.get(name)) is not None:
                    here(checkpoint)
            if node.kind == "board":
                _board(node.asked.get("board"))
            elif node.kind == "train":
                _training_task(node.asked.get("task"))
            elif (mark := repr(sorted(asked.items()))) not in seen:
                seen.add(mark)
                _tasks(asked)
        except (CheckpointError, UsageError) as error:
            raise UsageError(f"{node.id}: {error}") from error


def _training_task(name: str | None) -> None:
    if name is not None:
        registry().get("training_data", name)


def _tasks(asked: dict[str, Any]) -> None:
    for run in plan({"model": "-", **asked}):
        spec = run_spec(**run.fields)
        try:
            check(registry().get("harness", spec.harness).load(), spec)
        except UnknownNameError:
            raise
        except (DareError, ImportError):  # not a matter of names
            continue


def _board(name: str | None) -> None:
    """Raises UsageError: neither a board's name nor its file."""
    if name is None:
        return
    boards = importlib.import_module(_BOARDS)
    try:
        boards.load_board(name)
    except UnknownNameError as error:
        known = ", ".join(sorted(file.stem for file in boards.FOLDER.glob("*.yaml")))
        raise UsageError(
            f"board={name!r}: expected true, false, a board ({known}), its YAML file, or a board's own fields"
        ) from error
