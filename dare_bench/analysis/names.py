"""What to call runs where several are told of together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dare_bench.runs.reader import Run


def run_names(runs: Sequence[Run]) -> list[str]:
    """What to call each run: its id, or its path where another folder has a run of that id."""
    folders: dict[str, set[Path]] = {}
    for run in runs:
        folders.setdefault(run.run_id, set()).add(run.path.resolve())
    return [run.run_id if len(folders[run.run_id]) == 1 else str(run.path) for run in runs]


def letter(at: int) -> str:
    """How the run (or the way of asking) number ``at``, from 0, is called beside the others: A to Z, AA, AB, ..."""
    text = ""
    while at >= 0:
        at, rest = divmod(at, 26)
        text = chr(ord("A") + rest) + text
        at -= 1
    return text
