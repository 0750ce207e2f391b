"""Baselines for tests, of small runs made without a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_factory import make_run

from dare_bench.analysis import baseline as baselines
from dare_bench.analysis.baseline import Baseline
from dare_bench.runs.reader import Run

TASK = "dare_sudoku"


def made(folder: Path, **options: Any) -> Baseline:
    return baselines.of_run(Run(make_run(folder, **options)))


def changed(one: Baseline, change: Callable[[dict[str, Any]], None]) -> Baseline:
    """The baseline with its record changed."""
    record = one.model_dump(mode="json")
    change(record)
    return Baseline.model_validate(record)
