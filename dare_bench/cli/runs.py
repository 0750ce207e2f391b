"""Shared by commands that read runs: opening runs by path or name, and writing a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dare_bench.cli.guard import echo_problem
from dare_bench.cli.plain import echo_error, echo_json, plain_console
from dare_bench.errors import UnknownRunError, UsageError, closest
from dare_bench.runs.text import listed
from dare_bench.runs.writer import atomic_write_text

if TYPE_CHECKING:
    from dare_bench.reports.elements import Element
    from dare_bench.runs.reader import Run


MAKE_ONE = "make one with: dare-bench eval --model tiny-llada --tasks dare_sudoku"

RUNS_HELP = "Run directories, folders of them, or results of the commands of lm-eval or OpenCompass."
RUN_HELP = "A run directory, or one result of the command of lm-eval or OpenCompass."


def run_path(name: str) -> Path:
    """``name`` as a path, or the folder of that name in the default output folder."""
    path = Path(name)
    return Path("out") / name if not path.exists() and (Path("out") / name).is_dir() else path


def open_runs(names: str | Iterable[str]) -> list[Run]:
    """The runs at the paths, or of those names in the default output folder; of a folder, all runs below it. Runs of
    dare-bench and external results are opened alike. Raises UnknownRunError: no run at or below a path."""
    from dare_bench.analysis.run_finder import LAYOUTS, find_runs, open_run, places_at

    runs: list[Run] = []
    for name in [names] if isinstance(names, str) else names:
        path = run_path(name)
        if not path.exists():
            raise UnknownRunError(f"there is no folder {name}; give a run's folder{_similar(path)}")
        if not path.is_dir() or len(places_at(path)) == 1:
            runs.append(open_run(path))
        elif below := find_runs(path, echo_problem):
            runs += below
        else:
            raise UnknownRunError(f"no runs in {path.absolute()}; give {LAYOUTS}; {MAKE_ONE}")
    return runs


def _similar(path: Path) -> str:
    """The folders with the most similar names beside ``path`` and, of a bare name, in the default output folder."""
    folders = {path.parent, Path("out")} if path.parent == Path() else {path.parent}
    beside = {
        entry.name: entry for folder in folders if folder.is_dir() for entry in folder.iterdir() if entry.is_dir()
    }
    near = [str(beside[name]) for name in closest(path.name, beside)]
    return f"; closest: {', '.join(near)}" if near else "; dare-bench ls runs DIR lists those in a folder"


def open_one(name: str) -> Run:
    """The run at a path, or the only one in a folder. Raises RunError: there is none; UsageError: there are several."""
    runs = open_runs(name)
    if len(runs) != 1:
        raise UsageError(f"{name} contains {len(runs)} runs; give one of them: {listed([run.path for run in runs], 3)}")
    return runs[0]


def write_markdown(path: str, elements: Iterable[Element]) -> None:
    """Write a report to a file; raises SaveError."""
    from dare_bench.reports.elements import markdown

    atomic_write_text(path, markdown(elements), durable=False)
    echo_error(f"wrote {path}")


def print_report(elements: Iterable[Element], record: Callable[[], object], *, json: bool) -> None:
    """Print a report, or its record as JSON."""
    from dare_bench.reports.elements import show

    if json:
        echo_json(record())
    else:
        show(elements, plain_console())
