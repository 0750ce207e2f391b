"""Reading run directories back. Nothing here writes, and nothing needs torch or the harness that made the run."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_bench.errors import DareError, RunError, unknown
from dare_bench.reading import read_json
from dare_bench.runs.files import DONE_FILE, JOURNAL, RUN_FILE, file_digest, own_file, samples_name, traces_name
from dare_bench.runs.index import Document, SampleIndex, sample_lines, trace_lines
from dare_bench.runs.results import members
from dare_bench.runs.schema import Block, RunFile, Status, check_harness_part, parse_block, parse_run_file
from dare_bench.runs.scores import Score, headline, scores_of
from dare_bench.runs.text import counted, listed


class Run:
    """A run directory.

    A run that has not written results yet (``status`` "running") has no scores, tasks or block; its name and date come
    from ``run.json``.

    Raises:
        RunError: no run directory, or one whose files are damaged or of a newer schema; the message names the file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunError(f"there is no folder {path}; give a run's folder, which holds results_<date>.json")
        self._results_file = _newest_results(self.path)
        self._about = RunFile()
        self.results: dict[str, Any] = {}
        self.block: Block | None = None
        own_file(self.path, DONE_FILE)  # refused where it is no file of the run
        if (about := own_file(self.path, RUN_FILE)) is not None:
            self._about = parse_run_file(read_json(about, RunError), about)
        if self._results_file is not None:
            self.results = read_json(self._results_file, RunError)
            self.block = parse_block(self.results.get("dare_bench"), self._results_file)
            check_harness_part(self.results, self.block, self._results_file)
        elif about is None:
            raise RunError(f"{path} does not hold a run: neither results_<date>.json nor {RUN_FILE}{_below(self.path)}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.model!r}, {self.status})"

    @property
    def run_id(self) -> str:
        return self.block.run_id if self.block else self._about.run_id or self.path.name

    def require_block(self, error: type[DareError] = RunError) -> Block:
        """The ``dare_bench`` block; raises ``error`` where the run has no results yet."""
        if self.block is None:
            raise error(f"{self.path} has no results yet (status {self.status}); run the same command again to finish")
        return self.block

    @property
    def status(self) -> Status:
        """Complete, incomplete (some samples failed) or running (not finished, whether or not it goes on now)."""
        return self.block.status if self.block is not None and (self.path / DONE_FILE).is_file() else "running"

    @property
    def model(self) -> str:
        """The checkpoint's name."""
        return self.block.model.name if self.block else str(self.asked.get("model") or "")

    @property
    def asked(self) -> dict[str, Any]:
        """What the run was asked to do, as ``run.json`` has it (the fields of ``RunSpec``); empty if it has not."""
        return self._about.spec.model_dump(exclude_unset=True) if self._about.spec else {}

    @property
    def created(self) -> str:
        """ISO date of the run's making."""
        return self.block.created if self.block else self._about.created or self._about.date or ""

    @property
    def date(self) -> str | None:
        """The date in the names of the run's files; None before there are results."""
        return self._results_file.stem.removeprefix("results_") if self._results_file else None

    @property
    def results_file(self) -> Path | None:
        return self._results_file

    @property
    def tasks(self) -> list[str]:
        """Tasks that were run (groups are not among them)."""
        return list(self.block.tasks) if self.block else []

    @cached_property
    def _scores(self) -> list[Score]:
        return scores_of(self.results, self.block) if self.block else []

    def scores(self) -> list[Score]:
        """Every score, groups included."""
        return list(self._scores)

    def headline(self, task: str) -> Score | None:
        """The score that stands for a task or group; None where the task has none (yet).

        Raises:
            UnknownNameError: the run has results, and no such task or group.
        """
        self._check(task, {*self.tasks, *(score.task for score in self._scores)})
        return headline(self._scores, task)

    def _check(self, task: str, known: Iterable[str]) -> None:
        if self.block is not None and task not in known:
            raise unknown("task", task, known)

    def top_level(self) -> list[str]:
        """Tasks and groups with scores, without those that are part of a group with a score of its own."""
        scored = list(dict.fromkeys(score.task for score in self._scores))
        subtasks = self.results.get("group_subtasks", {})
        inside = {child for group in scored for child in subtasks.get(group, ())}
        return [name for name in scored if name not in inside]

    def samples_file(self, task: str) -> Path | None:
        """Where the sample lines of a task are; None if they were not written."""
        return self._file(samples_name(task, self.date or ""))

    def traces_file(self, task: str) -> Path | None:
        return self._file(traces_name(task, self.date or ""))

    def require_samples(self, task: str) -> Path:
        """The same; raises RunError where they were not written."""
        path = self.samples_file(task)
        if path is None:
            raise RunError(f"{self.path} has no sample lines of {task}; evaluate without --no-log-samples")
        return path

    def failed_documents(self, name: str) -> int:
        """Documents of a task or group that have no answer."""
        own = members(self.results, name)
        return sum(failure.task in own for failure in self.block.failures) if self.block else 0

    def edited(self, task: str) -> bool | None:
        """Was the task's samples file changed after the run wrote it? None: the run does not know (older runs), or has
        no such file. Reads the whole file.

        Raises:
            RunError: the file cannot be read.
        """
        return self._differs(task, self.samples_file(task), "samples_sha256")

    def traces_edited(self, task: str) -> bool | None:
        """The same of its traces file."""
        return self._differs(task, self.traces_file(task), "traces_sha256")

    @cached_property
    def results_edited(self) -> bool | None:
        """Was the results file changed after the run was finished? None: the run does not know (older ones, and those
        not finished)."""
        done = own_file(self.path, DONE_FILE)
        try:
            known = read_json(done, RunError).get("results_sha256") if done is not None else None
        except RunError:  # the marker of the end tells nothing any more; the run's command makes it anew
            return None
        if self._results_file is None or known is None:
            return None
        return file_digest(self._results_file) != known

    def _differs(self, task: str, file: Path | None, name: str) -> bool | None:
        known = getattr(self.block.tasks.get(task), name, None) if self.block else None
        return None if file is None or known is None else file_digest(file) != known

    def _file(self, name: str) -> Path | None:
        return own_file(self.path, name) if self.date else None

    def samples(self, task: str) -> Iterator[dict[str, Any]]:
        """The sample lines of a task, in the file's order; none if they were not written. Raises UnknownNameError."""
        self._check(task, self.tasks)
        path = self.samples_file(task)
        return sample_lines(path) if path else iter(())

    def traces(self, task: str) -> Iterator[dict[str, Any]]:
        """The trace lines of a task, in the file's order; none if they were not written. Raises UnknownNameError."""
        self._check(task, self.tasks)
        path = self.traces_file(task)
        return trace_lines(path) if path else iter(())

    def index(self, task: str) -> SampleIndex | None:
        """The documents of a task by id; None if its samples were not written. Reads both files once. Raises
        UnknownNameError."""
        self._check(task, self.tasks)
        path = self.samples_file(task)
        return SampleIndex(task, path, self.traces_file(task)) if path else None

    def documents(self, task: str) -> Iterator[Document]:
        """The documents of a task, each with all its filters' rows and its traces; none if they were not written."""
        index = self.index(task)
        return iter(index) if index else iter(())


def _below(folder: Path) -> str:
    """Which runs a folder that is no run itself has in it, for a message."""
    names = sorted(found.parent.name for found in folder.glob(f"*/{RUN_FILE}"))
    if not names:
        return ""
    return f"; it has {counted(len(names), 'run')} in it, give one of them: {listed(names, 3)}"


def find_runs(root: str | Path, on_problem: Callable[[str], None] | None = None) -> list[Run]:
    """All run directories at or below ``root``, oldest first.

    A folder that looks like a run but cannot be read is left out and told to ``on_problem`` (default: a warning).

    Raises:
        RunError: ``root`` is no folder.
    """
    return sorted(iterate_runs(root, on_problem), key=lambda run: (run.created, run.run_id))


def iterate_runs(root: str | Path, on_problem: Callable[[str], None] | None = None) -> Iterator[Run]:
    """The runs of :func:`find_runs` one after another, in the order of their folders, for those who keep none."""
    root = Path(root)
    if not root.is_dir():
        raise RunError(f"no folder at {root}; give a run directory or a folder of them")
    tell = on_problem or (lambda text: warnings.warn(text, stacklevel=3))
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != JOURNAL and not name.startswith("."))
        if RUN_FILE in files or any(name.startswith("results_") and name.endswith(".json") for name in files):
            try:
                found = Run(folder)
            except RunError as error:
                tell(f"left out: {error}")
            else:
                yield found


def _newest_results(folder: Path) -> Path | None:
    """The results file; of several the one with the latest date in its name."""
    names = sorted(path.name for path in folder.glob("results_*.json"))
    return own_file(folder, names[-1]) if names else None
