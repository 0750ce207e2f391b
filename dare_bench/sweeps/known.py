"""Check the names in a sweep before its first node starts."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import Any

from dare_bench.config import run_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.plan import plan
from dare_bench.errors import CheckpointError, DareError, DecodingError, UnknownNameError, UsageError
from dare_bench.loading import here
from dare_bench.registry import registry
from dare_bench.sweeps.sweep_graph import SweepNode

_BOARDS = "dare_bench.leaderboards.board"
"""Imported by name, like the builder: sweeps must not import leaderboards."""


def refuse_unknown(nodes: Iterable[SweepNode], selected: Collection[str]) -> None:
    """Refuse an unknown model (not bundled, not a folder, not of the form of a hub id; hubs are not contacted), task or
    board. Any other error is a failure of its node and does not stop the others.

    Args:
        selected: ids of the nodes to run.

    Raises:
        UsageError: the first unknown name, with the node that needs it.
    """
    checked: set[str] = set()
    for node in nodes:
        if node.id not in selected:
            continue
        settings = {name: value for name, value in node.settings.items() if name not in ("model", "adapter")}
        try:
            for name in ("model", "adapter"):
                if (checkpoint := node.settings.get(name)) is not None:
                    here(checkpoint)
            if node.kind == "board":
                importlib.import_module(_BOARDS).load_board(settings["board"] if [*settings] == ["board"] else settings)
            elif node.kind == "train" and "task" in settings:
                registry().get("training_data", settings["task"])
            elif node.kind == "eval" and (key := repr(sorted(settings.items()))) not in checked:
                checked.add(key)
                _check_tasks(settings)
        except (CheckpointError, UsageError) as error:
            raise UsageError(f"{node.id}: {error}") from error


def _check_tasks(settings: dict[str, Any]) -> None:
    for run in plan({"model": "-", **settings}):
        spec = run_spec(**run.fields)
        try:
            checked_harness(spec)
        except (UnknownNameError, DecodingError):
            raise
        except (DareError, ImportError):  # the failure of a node, not an unknown name
            continue
