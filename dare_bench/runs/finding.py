"""Finding and opening runs of any layout: our own, lm-eval's and OpenCompass's."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from dare_bench.errors import RunError
from dare_bench.reading import read_json
from dare_bench.runs.external import Intervals
from dare_bench.runs.lm_eval_results import is_named_as_results, read_lm_eval
from dare_bench.runs.opencompass_results import PARTS, RESULTS, is_opencompass, model_folders, read_opencompass
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import JOURNAL, RUN_FILE, own_file
from dare_bench.runs.text import listed

LAYOUTS = (
    "a run of dare-bench, a results file or folder of lm-eval's command (results_<date>.json), or a folder of"
    " OpenCompass's command (configs, predictions, results)"
)


def runs_at(path: Path) -> list[Path]:
    """The places of the runs of exactly this file or folder, not those in folders below it; empty if it has none.

    A run of dare-bench is its folder, a result of lm-eval its results file, a result of OpenCompass a model's folder.
    """
    if path.is_file():
        return [path] if is_named_as_results(path.name) else []
    if not path.is_dir():
        return []
    if is_opencompass(path):
        return model_folders(path)
    if path.parent.name == RESULTS and is_opencompass(path.parent.parent):
        return [path]
    files = sorted(file for file in path.glob("*.json") if is_named_as_results(file.name))
    if (path / RUN_FILE).exists() or (any(path.glob("results_*.json")) and not any(map(_is_external, files))):
        return [path]
    return [file for file in files if _is_external(file)]


def _is_external(file: Path) -> bool:
    """Is it a results file of lm-eval's own command? A damaged one is nobody's."""
    try:
        own = own_file(file.parent, file.name)
        raw = read_json(own, RunError) if own is not None else {}
    except RunError:
        return False
    return "results" in raw and "dare_bench" not in raw


def open_run(path: str | Path, intervals: Intervals) -> Run:
    """The one run at ``path``.

    Raises:
        RunError: there is none, there are several, or it cannot be read.
    """
    path = Path(path)
    places = runs_at(path)
    if len(places) != 1 and (several := places or _external_below(path)):
        raise RunError(f"{path} is not one result; it contains {len(several)}, give one of them: {listed(several, 3)}")
    return _open(places[0], intervals) if places else Run(path)


def _external_below(path: Path) -> list[Path]:
    return [place for place in _places(path) if place.is_file() or place.parent.name == RESULTS]


def _open(place: Path, intervals: Intervals) -> Run:
    if place.is_file():
        return read_lm_eval(place, intervals)
    return read_opencompass(place, intervals) if place.parent.name == RESULTS else Run(place)


def find_runs(root: str | Path, on_problem: Callable[[str], None] | None = None, *, intervals: Intervals) -> list[Run]:
    """All runs at or below ``root``, oldest first.

    A run that cannot be read is left out and reported to ``on_problem`` (default: a warning).

    Raises:
        RunError: ``root`` is no folder and no results file.
    """
    return sorted(iterate_runs(root, on_problem, intervals=intervals), key=lambda run: (run.created, run.run_id))


def iterate_runs(
    root: str | Path, on_problem: Callable[[str], None] | None = None, *, intervals: Intervals
) -> Iterator[Run]:
    """The runs of :func:`find_runs` one at a time, in the order of their folders."""
    root = Path(root)
    if not root.is_dir() and not runs_at(root):
        raise RunError(f"no folder at {root}; give a run directory or a folder of them")
    report = on_problem or (lambda text: warnings.warn(text, stacklevel=3))
    for place in _places(root):
        try:
            yield _open(place, intervals)
        except RunError as error:
            report(f"left out: {error}")


def _places(root: Path) -> Iterator[Path]:
    yield from runs_at(root) if root.is_file() else ()
    for folder, folders, _ in os.walk(root):
        yield from runs_at(Path(folder))
        passed = PARTS if is_opencompass(Path(folder)) else (JOURNAL,)
        folders[:] = sorted(name for name in folders if name not in passed and not name.startswith("."))
