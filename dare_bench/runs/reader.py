"""Reading run directories, without torch or the harness of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from dare_bench.errors import DareError, RunError, UnknownRunError, unknown
from dare_bench.reading import read_json
from dare_bench.runs.index import Document, DocumentIndex, SampleIndex, lines
from dare_bench.runs.lines import LoggedLine, SampleLine, TraceLine
from dare_bench.runs.results import members
from dare_bench.runs.run_files import DONE_FILE, RUN_FILE, file_digest, own_file, samples_name, traces_name
from dare_bench.runs.schema import Block, RunFile, Status, check_harness_part, parse_block, read_part
from dare_bench.runs.scores import Score, headline, scores_of
from dare_bench.runs.text import counted, listed


class Run:
    """A run directory.

    A run without results (``status`` "running") has no scores, tasks or block; its name and date are those in
    ``run.json``. ``unknown`` names what an external result (:class:`~dare_bench.runs.external.ExternalRun`) does not
    record.

    Raises:
        RunError: not a run directory, or its files are damaged or of a newer schema; the message names the file.
    """

    is_external = False
    """Was it written by the command-line tool of lm-eval or OpenCompass?"""
    unknown: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Tasks of an external result that have no score, and why."""
    without_samples = "evaluate without --no-log-samples"
    """What to do where there are no sample lines."""
    choice_value = "log-likelihood"
    """What is logged of a scored continuation, in nats."""
    sample_line: type[LoggedLine] = SampleLine
    """What each line of a samples file must fit."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UnknownRunError(f"there is no folder {path}; give a run's folder, which holds results_<date>.json")
        names = sorted(path.name for path in self.path.glob("results_*.json"))  # the dates in them sort by time
        self.results_file = own_file(self.path, names[-1]) if names else None
        self._about = RunFile()
        self.results: dict[str, Any] = {}
        self.block: Block | None = None
        own_file(self.path, DONE_FILE)  # refuses a link out of the run
        if (about := own_file(self.path, RUN_FILE)) is not None:
            self._about = read_part(RunFile, read_json(about, RunError), about)
        if self.results_file is not None:
            self.results = read_json(self.results_file, RunError)
            self.block = parse_block(self.results.get("dare_bench"), self.results_file)
            check_harness_part(self.results, self.block, self.results_file)
        elif about is None:
            missing = f"neither results_<date>.json nor {RUN_FILE}"
            raise RunError(f"{self.path.absolute()} contains no run: {missing}{_below(self.path)}")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.model!r}, {self.status})"

    @property
    def run_id(self) -> str:
        return self.block.run_id if self.block else self._about.run_id or self.path.name

    @cached_property
    def name(self) -> str:
        """What messages call the run, and commands accept: the folder in the default output folder."""
        return self.run_id

    def require_block(self, error: type[DareError] = RunError) -> Block:
        """The ``dare_bench`` block; raises ``error`` if the run has no results yet."""
        if self.block is None:
            raise error(f"{self.path} has no results yet (status {self.status}); run the same command again to finish")
        return self.block

    @property
    def status(self) -> Status | Literal["external"]:
        """Complete, incomplete (some samples failed), running (not finished, active or not) or external."""
        return self.block.status if self.block is not None and (self.path / DONE_FILE).is_file() else "running"

    @property
    def is_limited(self) -> bool:
        """Was only a part of some task's documents evaluated?"""
        return self.block is not None and any(task.limit_applied for task in self.block.tasks.values())

    @property
    def status_text(self) -> str:
        """The status for people: ``complete, limited``."""
        return f"{self.status}, limited" if self.is_limited else self.status

    @property
    def model(self) -> str:
        """The checkpoint's name."""
        return self.block.model.name if self.block else str(self.requested.get("model") or "")

    @property
    def requested(self) -> dict[str, Any]:
        """The requested settings in ``run.json`` (fields of ``RunSpec``); empty if it has none."""
        return self._about.spec.model_dump(exclude_unset=True) if self._about.spec else {}

    @property
    def created(self) -> str:
        """ISO date of the run's creation."""
        return self.block.created if self.block else self._about.created or self._about.date or ""

    @property
    def date(self) -> str | None:
        """The date in the names of the run's files; None without results."""
        return self.results_file.stem.removeprefix("results_") if self.results_file else None

    @property
    def tasks(self) -> list[str]:
        """The evaluated tasks, without groups."""
        return list(self.block.tasks) if self.block else []

    @property
    def result_files(self) -> list[Path]:
        """The files that its scores are read from."""
        return [self.results_file] if self.results_file else []

    @cached_property
    def _scores(self) -> list[Score]:
        return scores_of(self.results, self.block) if self.block else []

    def scores(self) -> list[Score]:
        """Every score, groups included."""
        return list(self._scores)

    def headline(self, task: str) -> Score | None:
        """The headline score of a task or group, if it has one; raises UnknownNameError."""
        self._check(task, {*self.tasks, *(score.task for score in self._scores)})
        return headline(self._scores, task)

    def _check(self, task: str, known: Iterable[str]) -> None:
        if self.block is not None and task not in known:
            raise unknown("task", task, known)

    def top_level(self) -> list[str]:
        """Tasks and groups with scores that are not part of another group with a score."""
        scored = list(dict.fromkeys(score.task for score in self._scores))
        subtasks = self.results.get("group_subtasks", {})
        inside = {child for group in scored for child in subtasks.get(group, ())}
        return [name for name in scored if name not in inside]

    def samples_file(self, task: str) -> Path | None:
        """The samples file of a task; None if it was not written."""
        return self._file(samples_name(task, self.date or ""))

    def traces_file(self, task: str) -> Path | None:
        """The traces file of a task; None if it was not written."""
        return self._file(traces_name(task, self.date or ""))

    def require_samples(self, task: str) -> Path:
        """The samples file of a task; raises RunError if it was not written."""
        path = self.samples_file(task)
        if path is None:
            raise RunError(f"{self.path} has no sample lines of {task}; {self.without_samples}")
        return path

    def failed_documents(self, name: str) -> int:
        """The number of documents of a task or group without an answer."""
        tasks = members(self.results, name)
        return sum(failure.task in tasks for failure in self.block.failures) if self.block else 0

    def nfe_per_request(self, name: str) -> float | None:
        """Forward passes per request of a task or group; None if the run did not record them by task."""
        block = self.block
        tasks = [block.tasks[task] for task in members(self.results, name) if task in block.tasks] if block else []
        requests = sum(task.requests for task in tasks)
        passes = [task.nfe for task in tasks if task.nfe is not None]
        return sum(passes) / requests if requests and len(passes) == len(tasks) else None

    def edited(self, task: str) -> bool | None:
        """Was the task's samples file changed after the run wrote it? None: unknown (older runs), or there is no file.
        Reads the whole file; raises RunError."""
        return self._differs(task, self.samples_file(task), "samples_sha256")

    def traces_edited(self, task: str) -> bool | None:
        """Was the task's traces file changed? See :meth:`edited`."""
        return self._differs(task, self.traces_file(task), "traces_sha256")

    @cached_property
    def results_edited(self) -> bool | None:
        """Was the results file changed after the run finished? None: unknown (older or unfinished runs)."""
        done = own_file(self.path, DONE_FILE)
        try:
            digest = read_json(done, RunError).get("results_sha256") if done is not None else None
        except RunError:  # the run's command writes a damaged marker again
            return None
        return None if self.results_file is None or digest is None else file_digest(self.results_file) != digest

    def _differs(self, task: str, file: Path | None, name: str) -> bool | None:
        digest = getattr(self.block.tasks.get(task), name, None) if self.block else None
        return None if file is None or digest is None else file_digest(file) != digest

    def _file(self, name: str) -> Path | None:
        return own_file(self.path, name) if self.date else None

    def samples(self, task: str) -> Iterator[dict[str, Any]]:
        """The lines of a task's samples file, if there is one. Raises UnknownNameError."""
        self._check(task, self.tasks)
        path = self.samples_file(task)
        return lines(path, self.sample_line) if path else iter(())

    def traces(self, task: str) -> Iterator[dict[str, Any]]:
        """The lines of a task's traces file, if there is one. Raises UnknownNameError."""
        self._check(task, self.tasks)
        path = self.traces_file(task)
        return lines(path, TraceLine) if path else iter(())

    def index(self, task: str) -> DocumentIndex | None:
        """The documents of a task by id; None without a samples file. Reads both files; raises UnknownNameError."""
        self._check(task, self.tasks)
        path = self.samples_file(task)
        return SampleIndex(task, path, self.traces_file(task), self.sample_line) if path else None

    def require_index(self, task: str) -> DocumentIndex:
        """The documents of a task by id; raises RunError without a samples file."""
        index = self.index(task)
        if index is None:
            raise RunError(f"{self.path} has no sample lines of {task}; {self.without_samples}")
        return index

    def documents(self, task: str) -> Iterator[Document]:
        """The documents of a task, each with its sample and trace lines; none without a samples file."""
        index = self.index(task)
        return iter(index) if index else iter(())


def _below(folder: Path) -> str:
    """The end of an error message about a folder of runs, which names some of them."""
    names = sorted(file.parent.name for file in folder.glob(f"*/{RUN_FILE}"))
    return f"; it contains {counted(len(names), 'run')}, give one of them: {listed(names, 3)}" if names else ""
