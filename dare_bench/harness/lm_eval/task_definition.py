"""What makes two evaluations of a task the same task: prompts, targets, filters and scorer, never where data lay."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dare_bench.harness.common.hashing import short_hash

# Where data comes from and what only names things; the documents' own hash covers the data itself.
_LEFT_OUT = re.compile(r"^(dataset_\w+|custom_dataset|\w+_split|split|task_alias|tag|metadata|num_fewshot)$")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def definition(task: Any, extra: Iterable[str] = ()) -> str:
    """Hash of a task's definition: its templates, metrics, filters, and the source of the code they call.

    Args:
        extra: anything else that decides scores (a metric of ours that stands in for one).
    """
    config = {key: value for key, value in vars(task.config).items() if not _LEFT_OUT.match(key)}
    version = (task.config.metadata or {}).get("version") if isinstance(task.config.metadata, Mapping) else None
    parts = [_described(config), str(version), _described(type(task)), sorted(extra)]
    return short_hash(json.dumps(parts, sort_keys=True))


def _described(value: Any) -> Any:
    """A JSON value that changes when what ``value`` does changes, and with nothing else."""
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, Mapping):
        return {str(k): _described(v) for k, v in value.items() if not _LEFT_OUT.match(str(k))}
    if isinstance(value, (list, tuple)):
        return [_described(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(item) for item in value)
    if isinstance(value, functools.partial):
        return ["partial", _described(value.func), _described(value.args), _described(value.keywords)]
    if callable(value):
        return _code(value)
    if hasattr(value, "__dict__"):
        return [type(value).__name__, _described(vars(value))]
    return _ADDRESS.sub("", repr(value))


def _code(value: Any) -> Any:
    """A function or class by the whole text of its file: helpers it calls are there too. lm-eval's and Python's own
    are named only; their versions are recorded with the run."""
    name = getattr(value, "__qualname__", type(value).__name__)
    module = getattr(value, "__module__", "") or ""
    named = name if "/" in module else f"{module}.{name}"  # lm-eval names the modules of other folders by their path
    if module.startswith("lm_eval.") and not module.startswith("lm_eval.tasks."):
        return named
    try:
        source = inspect.getsourcefile(value)
        return [name, short_hash(Path(source).read_text(errors="replace"))] if source else named
    except (TypeError, OSError):
        return named
