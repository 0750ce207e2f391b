"""``dare-bench ls runs``: the run directories below a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dare_bench.cli.plain import plain_console, plain_table, say, say_json, tell

if TYPE_CHECKING:
    from dare_bench.runs.reader import Run


def list_runs(root: str = "out", json: bool = False) -> None:
    """Print every run at or below ``root``, oldest first; folders that cannot be read are named on stderr.

    Raises:
        RunError: no folder at ``root``.
    """
    from dare_bench.runs.reader import find_runs

    runs = find_runs(root, tell)
    if json:
        say_json([_record(run) for run in runs])
        return
    if not runs:
        say(f"no runs below {root}; make one with: dare-bench eval --model tiny-llada --tasks dare_sudoku")
        return
    table = plain_table(("run", "model", "status", "date", "scores"), map(_row, runs))
    plain_console(width=10_000).print(table)  # a narrow one would fold the paths


def _row(run: Run) -> tuple[str, ...]:
    scores = "  ".join(_short(run, task) for task in run.top_level()[:6])
    return str(run.path), run.model, _status(run), run.created[:16].replace("T", " "), scores


def _short(run: Run, task: str) -> str:
    score = run.headline(task)
    return f"{task} {score.text} (n={score.n})" if score else task


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
