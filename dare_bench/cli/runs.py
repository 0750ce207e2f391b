"""What verbs that read runs share: opening runs by path or name, and delivering a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from dare_bench.cli.plain import plain_console, say_json, tell

if TYPE_CHECKING:
    from dare_bench.reports.elements import Element
    from dare_bench.runs.reader import Run


def place(word: str) -> Path:
    """The path given, or the folder of that name where runs go by default."""
    path = Path(word)
    return Path("out") / word if not path.exists() and (Path("out") / word).is_dir() else path


def open_runs(words: str | Iterable[str]) -> list[Run]:
    """The run at each path, or of that name in the folder where runs go by default, or all runs below a folder."""
    from dare_bench.errors import RunError
    from dare_bench.runs.files import RUN_FILE
    from dare_bench.runs.reader import Run, find_runs

    runs: list[Run] = []
    for word in [words] if isinstance(words, str) else words:
        path = place(word)
        if not path.is_dir() or (path / RUN_FILE).is_file() or any(path.glob("results_*.json")):
            runs.append(Run(path))
        elif found := find_runs(path, tell):
            runs += found
        else:
            make = "make one with: dare-bench eval --model tiny-llada --tasks dare_sudoku"
            raise RunError(f"no runs below {path}; {make}")
    return runs


def write_markdown(path: str, elements: Iterable[Element]) -> None:
    """Write a report into a file and say so; raises SaveError."""
    from dare_bench.reports.elements import markdown
    from dare_bench.runs.writer import atomic_write_text

    atomic_write_text(path, markdown(elements), durable=False)
    tell(f"wrote {path}")


def print_report(elements: Iterable[Element], record: Callable[[], object], *, json: bool) -> None:
    """Print a report, or its record as JSON."""
    from dare_bench.reports.elements import show

    if json:
        say_json(record())
    else:
        show(elements, plain_console())
