"""One run as boards need it: its scores and a few facts. The run itself is opened again when its page is written, so a
board of any number of runs stays small in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dare_bench.analysis.rows import RowKey, row_key
from dare_bench.analysis.settings import PromptContext, prompt_context, requested
from dare_bench.errors import RunError
from dare_bench.leaderboards.names import Name, names
from dare_bench.leaderboards.pages import plain_value, slug
from dare_bench.leaderboards.site import state
from dare_bench.program import several
from dare_bench.runs.files import RUN_FILE
from dare_bench.runs.reader import Run, iterate_runs
from dare_bench.runs.results import members
from dare_bench.runs.schema import UNSAFE_ALLOWED, Cost, TaskBlock
from dare_bench.runs.scores import Score, headline
from dare_bench.runs.text import one_line, without_paths


@dataclass(slots=True)
class Entry:
    """A run. ``checkpoint`` is what makes two runs those of one model: name, content, adapter and dtype.

    ``name`` is what to call it among the others. ``state`` tells whether its results are those of the last build;
    ``edited`` names the tasks whose sample files are not as the run wrote them (filled in when the samples are read).
    """

    path: Path
    run_id: str
    model: str
    status: str
    created: str
    family: str
    dtype: str
    checkpoint: tuple[str, ...]
    harness: str
    asked: dict[str, Any]
    decodings: list[dict[str, Any]]
    """The decoding of each of its tasks that was generated, every value as it held."""
    suite: str | None
    limit: int | float | None
    failures: int
    hardware: str
    cost: Cost
    lineage: dict[str, Any] | None
    tasks: list[str]
    top_level: list[str]
    scores: list[Score]
    state: Any
    name: Name
    around: dict[str, PromptContext]
    """What stood around the documents, by task and group."""
    row: RowKey
    """Which row of a board it belongs to."""
    rescored: bool = False
    unsafe: bool = False
    """Was it allowed to run generated code and scorers without a sandbox?"""
    programs: str = ""
    """How the programs that answered differ; empty where one did."""
    results_edited: bool = False
    files: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Of each task with sample lines: the states of its samples file and of its traces file."""
    task_nfe: dict[str, float] = field(default_factory=dict)
    """Forward passes per request of each task or group whose own the run knows."""
    generated: frozenset[str] = frozenset()
    """Tasks and groups that were generated, some of a group's at least."""
    slug: str = ""
    edited: list[str] = field(default_factory=list)

    @property
    def page(self) -> str:
        return f"runs/{self.slug}/index.html"

    def open(self) -> Run:
        """The run itself, read anew; raises RunError."""
        return Run(self.path)

    def headline(self, task: str) -> Score | None:
        """The score that stands for a task or group."""
        return headline(self.scores, task)

    def score(self, task: str, key: str) -> Score | None:
        """The score of a task by its "metric,filter"."""
        return next((score for score in self.scores if score.task == task and score.key == key), None)

    def nfe_per_request(self, task: str) -> tuple[float | None, bool]:
        """Forward passes per request, and whether they are the task's own: older runs of several tasks know only what
        all of them cost together."""
        if task in self.task_nfe:
            return self.task_nfe[task], True
        cost = self.cost
        return (cost.nfe / cost.requests if cost.requests else None), len(self.tasks) == 1

    @property
    def complete(self) -> bool:
        return self.status == "complete" and not self.failures

    @property
    def settings(self) -> str:
        """How the answers were made, in short; see :func:`settings_line`."""
        return settings_line([self])

    def shots(self, task: str) -> str:
        """How many examples stood before each question of a task or group: "5-shot"; "" where nobody knows."""
        counts = [count for count in self.around[task].shots if isinstance(count, int)]
        return f"{spread(counts)}-shot" if counts else ""


_ALWAYS = ("gen_length", "block_length", "steps", "denoising_steps")
"""Decoding fields that are told whether somebody asked for them or not: tasks set them, too."""


def settings_line(entries: Sequence[Entry]) -> str:
    """Family, dtype, harness and decoding of a row's runs. The values are those that held: a task may have set them,
    and a family's rules may have changed what was asked for."""
    first = entries[0]
    asked = {name: value for entry in entries for name, value in entry.asked.items()}
    held: dict[str, list[Any]] = {}
    for name in dict.fromkeys([*_ALWAYS, *asked]):
        held[name] = [own[name] for entry in entries for own in entry.decodings if name in own] or [asked.get(name)]
    told = [f"{name} {spread(values)}" for name, values in held.items() if name in asked or values != [None]]
    template = "chat template" if any(around.template for one in entries for around in one.around.values()) else ""
    known = [one_line(name, 40) for name in (first.family, first.dtype, first.harness)]
    parts = [*known, template, one_line(", ".join(told), 120)]
    return ", ".join(filter(None, parts))


def spread(values: Sequence[Any]) -> str:
    """Several tasks' values of one setting: the one that all have, the ends where they are numbers, or all."""
    seen = list({str(value): value for value in values}.values())
    if len(seen) > 1 and all(isinstance(value, (int, float)) for value in seen):
        return f"{min(seen)}–{max(seen)}"
    return " or ".join(plain_value(value) for value in seen)


def read_entries(roots: Iterable[str | Path], problem: Callable[[str], None]) -> list[Entry]:
    """The runs at or below ``roots``, each folder once, oldest first; what cannot be read is told to ``problem``.

    Raises:
        RunError: a root is no folder.
    """
    found: dict[Path, Entry] = {}
    for root in roots:
        for run in iterate_runs(root, problem):
            try:
                found.setdefault(run.path.resolve(), _entry(run))
            except RunError as error:
                problem(f"left out: {error}")
    entries = sorted(found.values(), key=lambda entry: (entry.created, entry.run_id, str(entry.path)))
    called = names((entry.checkpoint, entry.lineage) for entry in entries)
    seen: dict[str, int] = {}
    for entry in entries:
        entry.name = called[entry.checkpoint]
        name = slug(entry.run_id)
        # Names that differ in case alone fall together on some file systems; copies of one run get a number.
        count = seen[name.lower()] = seen.get(name.lower(), 0) + 1
        entry.slug = name if count == 1 else f"{name}--{count}"
    return entries


def _entry(run: Run) -> Entry:
    block = run.block
    model = block.model if block else None
    environment = block.environment if block else None
    machine = (environment.gpu or environment.cpu or "") if environment else ""
    return Entry(
        path=run.path,
        run_id=run.run_id,
        model=run.model,
        status=run.status,
        created=run.created,
        family=model.family if model else "",
        dtype=model.dtype if model else "",
        row=row_key(run, machine),
        rescored=bool(block and any("scored again" in event.what for event in block.events)),
        programs=several(block.programs) if block else "",
        results_edited=bool(run.results_edited),
        checkpoint=(model.name, model.content_hash, model.adapter_hash or "", model.dtype) if model else (run.model,),
        asked=requested(run),
        unsafe=_unsafe(run),
        harness=block.harness.name if block else "",
        decodings=[task.decoding for task in block.tasks.values() if task.decoding] if block else [],
        suite=block.suite if block else None,
        limit=block.limit if block else None,
        failures=len(block.failures) if block else 0,
        hardware=machine,
        cost=block.cost if block else Cost(),
        lineage=without_paths(model.lineage) if model else None,
        files={
            task: (state(file), state(run.traces_file(task)))
            for task in run.tasks
            if (file := run.samples_file(task)) is not None
        },
        tasks=run.tasks,
        top_level=run.top_level(),
        scores=run.scores(),
        around={task: prompt_context(run, task) for task in dict.fromkeys(score.task for score in run.scores())},
        state=(state(run.results_file), state(run.path / RUN_FILE), run.status),
        name=Name(run.model),
        task_nfe=dict(_task_nfe(run)),
        generated=frozenset(name for name in _scored(run) if any(task.decoding for task in _blocks(run, name))),
    )


def _unsafe(run: Run) -> bool:
    """Could any session of the run do without a sandbox?"""
    if run.asked.get("unsafe_no_sandbox"):
        return True
    block = run.block
    return block is not None and (
        (block.execution is not None and block.execution.unsafe)
        or any(event.what == UNSAFE_ALLOWED for event in block.events)
    )


def _scored(run: Run) -> dict[str, None]:
    """Tasks and groups that have a score, in order."""
    return dict.fromkeys(score.task for score in run.scores())


def _blocks(run: Run, name: str) -> list[TaskBlock]:
    """The task of that name, or those of the group."""
    known = run.block.tasks if run.block else {}
    return [known[task] for task in members(run.results, name) if task in known]


def _task_nfe(run: Run) -> Iterator[tuple[str, float]]:
    for name in _scored(run):
        tasks = _blocks(run, name)
        requests = sum(task.requests for task in tasks)
        if requests and all(task.nfe is not None for task in tasks):
            yield name, sum(task.nfe or 0 for task in tasks) / requests
