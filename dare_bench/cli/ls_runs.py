"""``dare-bench ls runs``: the run directories below a folder."""

from __future__ import annotations

import json as jsonlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dare_bench.runs.reader import Run


def list_runs(root: str = "out", json: bool = False) -> None:
    """Print every run at or below ``root``, oldest first; folders that cannot be read are named on stderr.

    Raises:
        RunError: no folder at ``root``.
    """
    from dare_bench.runs.reader import find_runs

    runs = find_runs(root, lambda text: print(text, file=sys.stderr))
    if json:
        print(jsonlib.dumps([_record(run) for run in runs], indent=2, ensure_ascii=False))
        return
    if not runs:
        print(f"no runs below {root}; make one with: dare-bench eval --model tiny-llada --tasks dare_sudoku")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("run", "model", "status", "date", "scores"):
        table.add_column(name, overflow="fold")
    for run in runs:
        scores = "  ".join(_short(run, task) for task in run.top_level()[:6])
        cells = (str(run.path), run.model, _status(run), run.created[:16].replace("T", " "), scores)
        table.add_row(*(Text(cell) for cell in cells))
    # A pipe has no width; rich would take 80 columns and fold the paths.
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def _short(run: Run, task: str) -> str:
    score = run.headline(task)
    return f"{task} {score.value:.3f} (n={score.n})" if score else task


def _status(run: Run) -> str:
    limited = any(score.limited for score in run.scores())
    return f"{run.status}, limited" if limited else run.status


def _record(run: Run) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "path": str(run.path),
        "run_id": run.run_id,
        "model": run.model,
        "status": run.status,
        "created": run.created,
        "tasks": run.tasks,
        "scores": [asdict(score) for score in run.scores()],
    }
