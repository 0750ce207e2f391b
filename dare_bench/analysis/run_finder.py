"""Finding and opening runs of any layout: dare-bench's, lm-eval's and OpenCompass's. The intervals of external results
are computed from their samples."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.errors import BUG, RunError, UnknownRunError
from dare_bench.reading import read_json
from dare_bench.runs.lm_eval_results import date_in, read_lm_eval
from dare_bench.runs.opencompass_results import PARTS, model_folders, read_opencompass
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import JOURNAL, RUN_FILE, own_file
from dare_bench.runs.text import listed, one_line

LAYOUTS = (
    "a run of dare-bench, a results file or folder of lm-eval's command (results_<date>.json), or a folder of"
    " OpenCompass's command (configs, predictions, results)"
)


class Place(NamedTuple):
    """Where a run is: its folder, for lm-eval its results file, for OpenCompass a model's folder of results."""

    path: Path
    layout: Literal["dare-bench", "lm-eval", "opencompass"]

    def open(self) -> Run:
        """Raises RunError if it cannot be read."""
        match self.layout:
            case "lm-eval":
                return read_lm_eval(self.path, confidence_intervals)
            case "opencompass":
                return read_opencompass(self.path, confidence_intervals)
            case "dare-bench":
                return Run(self.path)


def places_at(path: Path) -> list[Place]:
    """The runs of exactly this file or folder, not those in folders below it; empty if it has none."""
    if path.is_file():
        return [Place(path, "lm-eval")] if date_in(path.name) else []
    if not path.is_dir():
        return []
    if (path / RUN_FILE).exists():
        return [Place(path, "dare-bench")]
    if models := model_folders(path):
        return [Place(model, "opencompass") for model in models]
    absolute = path.absolute()
    if absolute in model_folders(absolute.parent.parent):
        return [Place(absolute, "opencompass")]
    files = sorted(file for file in path.glob("*.json") if date_in(file.name))
    if external := [Place(file, "lm-eval") for file in files if _is_external(file)]:
        return external
    return [Place(path, "dare-bench")] if any(path.glob("results_*.json")) else []


def _is_external(file: Path) -> bool:
    """Was it not written by dare-bench? A file that cannot be read is reported when it is opened."""
    try:
        own = own_file(file.parent, file.name)
        raw = read_json(own, RunError) if own is not None else {}
    except RunError:
        return True
    return "results" in raw and "dare_bench" not in raw


def _places(root: Path) -> Iterator[Place]:
    yield from places_at(root) if root.is_file() else ()
    for folder, folders, _ in os.walk(root):
        yield from places_at(Path(folder))
        passed = PARTS if model_folders(Path(folder)) else (JOURNAL,)
        folders[:] = sorted(name for name in folders if name not in passed and not name.startswith("."))


def open_run(path: str | Path) -> Run:
    """The run at ``path``, or the one external result below it.

    Raises:
        RunError: there is none, there are several, or it cannot be read.
    """
    path = Path(path)
    places = places_at(path) or [place for place in _places(path) if place.layout != "dare-bench"]
    if len(places) > 1:
        names = listed([place.path for place in places], 3)
        raise RunError(f"{path} contains {len(places)} external results; give one of them: {names}")
    if path.is_file() and not places:
        raise RunError(f"{path} is not a results file; give {LAYOUTS}")
    return places[0].open() if places else Run(path)


def find_runs(root: str | Path, on_problem: Callable[[str], None] | None = None) -> list[Run]:
    """All runs at or below ``root``, oldest first.

    A run that cannot be read is left out and reported to ``on_problem`` (default: a warning). A part of a run that is
    there too, in the same folder, is not listed; it is opened by its path.

    Raises:
        RunError: ``root`` is neither a folder nor a results file.
    """
    return sorted(iterate_runs(root, on_problem), key=lambda run: (run.created, run.run_id))


def iterate_runs(root: str | Path, on_problem: Callable[[str], None] | None = None) -> Iterator[Run]:
    """The runs of :func:`find_runs` one at a time, in the order of their folders, parts last."""
    root = Path(root)
    if not root.is_dir() and not places_at(root):
        raise UnknownRunError(f"no folder at {root}; give a run directory or a folder of them")
    report = on_problem or (lambda text: warnings.warn(text, stacklevel=3))
    parts: list[Run] = []
    whole: set[tuple[Path, str]] = set()
    for place in _places(root):
        try:
            run = place.open()
            run.scores()  # those of an external result come from its samples
        except RunError as error:
            report(f"left out: {error}")
        except Exception as error:  # one run must not hide all others
            text = one_line(f"{type(error).__name__}: {error}", 300)
            report(f"left out: {place.path}: {text}; {BUG}")
        else:
            for reason in run.left_out:
                report(f"left out: {reason}")
            if run.block is not None and run.block.part_of is not None:
                parts.append(run)
                continue
            whole.add((run.path.parent, run.run_id))
            yield run
    yield from (run for run in parts if (run.path.parent, run.require_block().part_of) not in whole)
