"""What OpenCompass's dumped configuration (``configs/<date>.py``) says of models and data sets. It is Python; it is
parsed for literals and never executed."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.errors import RunError
from dare_bench.reading import MAX_DEPTH, read_source
from dare_bench.runs.run_files import own_file


@dataclass(frozen=True, slots=True)
class OpenCompassConfig:
    """Models and data sets by their ``abbr``; empty where the file is missing or is not a plain list of settings."""

    models: dict[str, dict[str, Any]] = field(default_factory=dict)
    datasets: dict[str, dict[str, Any]] = field(default_factory=dict)

    def model_path(self, model: str) -> str | None:
        path = self.models.get(model, {}).get("path")
        return path if isinstance(path, str) else None

    def repeats(self, task: str) -> int | None:
        """The number of answers to each prompt; None: not recorded."""
        n = self.datasets[task].get("n", 1) if task in self.datasets else None
        return n if type(n) is int and 0 < n <= 10**6 else None

    def is_limited(self, task: str) -> bool:
        """Was only a part of the data set evaluated?"""
        reader = self.datasets.get(task, {}).get("reader_cfg")
        return isinstance(reader, Mapping) and reader.get("test_range") not in (None, "", "[:]")


def read_config(folder: Path) -> OpenCompassConfig:
    """The newest configuration in ``configs/``; raises RunError."""
    names = sorted(path.name for path in folder.glob("*.py"))
    file = own_file(folder, names[-1]) if names else None
    if file is None:
        return OpenCompassConfig()
    assigned: dict[str, Any] = {}
    with warnings.catch_warnings(action="ignore"), suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        statements = ast.parse(read_source(file, RunError)).body
        for statement in (one for one in statements if isinstance(one, ast.Assign)):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            assigned |= dict.fromkeys(names, _literal(statement.value))
    return OpenCompassConfig(_by_abbr(assigned.get("models")), _by_abbr(assigned.get("datasets")))


def _by_abbr(value: Any) -> dict[str, dict[str, Any]]:
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    return {entry["abbr"]: entry for entry in entries if isinstance(entry.get("abbr"), str)}


def _literal(node: ast.expr, depth: int = 0) -> Any:
    """The value of a literal, or of ``dict(name=literal, ...)``; None for anything else."""
    if depth > MAX_DEPTH:
        return None
    match node:
        case ast.Constant(value):
            return value
        case ast.List(parts) | ast.Tuple(parts):
            return [_literal(part, depth + 1) for part in parts]
        case ast.Call(ast.Name("dict"), [], keywords):
            return {word.arg: _literal(word.value, depth + 1) for word in keywords if word.arg is not None}
    return None
