"""Score the recorded answers of a run again, by the harness that owns the task, without opening its model.

Prompts are built again and must equal the recorded ones; generated code runs again, only in the sandbox. A run may come
from somebody else: the folders of task code that it names are never read (:func:`recorded_spec`).
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from dare_bench.config import RunSpec, run_spec
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.recorded_answers import RecordedAnswers, RecordedModel
from dare_bench.engine.rundir import read_done
from dare_bench.errors import DataError, IncompleteError, RunError, UsageError, unknown
from dare_bench.harness import task_source
from dare_bench.protocols import HarnessResult, LoadedModel
from dare_bench.runs.reader import Run
from dare_bench.runs.results import members, metric_keys
from dare_bench.runs.schema import Block
from dare_bench.runs.writer import plain

TOLERANCE = 1e-9
"""Scores that differ by less than this (relative, or absolute below 1) are equal."""


@dataclass(frozen=True, slots=True)
class RescoredValue:
    """A value as recorded and as scored ``again``; None: missing. A score of a task or group, or with ``doc_id`` the
    contribution of one document."""

    task: str
    metric: str
    filter: str
    recorded: Any
    again: Any
    doc_id: str | None = None

    @property
    def same(self) -> bool:
        return same_value(self.recorded, self.again)


@dataclass(frozen=True)
class Rescored:
    """The result of scoring a run again. ``scores``: all of them; ``documents``: the values that differ; ``counted``:
    the number of documents compared; ``edited``: by task, was its samples file changed after the run (None: not known);
    ``changes``: other differences (a task's definition, its targets)."""

    run: Run
    spec: RunSpec
    scores: list[RescoredValue]
    documents: list[RescoredValue]
    counted: int
    edited: dict[str, bool | None]
    harness: HarnessResult
    changes: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Are all scores and all documents' values equal?"""
        return not self.documents and all(score.same for score in self.scores)


def rescore(
    run: Run, *, task: str | None = None, data_dir: str | None = None, include_path: Sequence[str] | None = None
) -> Rescored:
    """Score the recorded answers of a run again.

    Args:
        task: only this task; groups are then left out.
        data_dir: where data sets are, in place of the recorded folder.
        include_path: folders of tasks that are not in the installed packages. The recorded ones are never used.

    Raises:
        UsageError: a task that the run or the harness does not know; generated code without a sandbox; tasks from
            recorded folders without ``include_path``; a folder of the run itself on the search path for code.
        IncompleteError: the run has no results yet.
        RunError: the run lacks what is needed, or its prompts differ from those of the task now.
        DataError: the task's data is missing, or the harness cannot score.
    """
    if run.is_external:
        raise RunError(f"{run.path} is an external result; only runs of dare-bench can be scored again")
    if run.block is None or run.status == "running":
        raise IncompleteError(f"{run.path} is not finished (status {run.status}); run its command again to finish it")
    block = run.block
    if task is not None and task not in block.tasks:
        raise unknown("task", task, block.tasks, place="this run")
    tasks = [task] if task is not None else list(block.tasks)
    spec = recorded_spec(run, data_dir, include_path)
    model = RecordedModel(run, block, spec.apply_chat_template)
    result = checked_harness(spec)(spec, cast("LoadedModel", model)).run(RecordedAnswers(run, tasks))
    _refuse_new_failures(run, [failure for failure in result.failures if failure["task"] in tasks])
    counted, documents, targets = 0, list[RescoredValue](), list[str]()
    for name in tasks:
        count, differing, notes = _compared(run, name, result.samples.get(name, ()))
        counted, documents, targets = counted + count, documents + differing, targets + notes
    return Rescored(
        run=run,
        spec=spec,
        scores=list(_scores(run, result.results, tasks if task is not None else None)),
        documents=documents,
        counted=counted,
        edited={name: run.edited(name) for name in tasks},
        harness=result,
        changes=[*_definitions(block, result.fingerprints, tasks), *targets],
    )


def recorded_spec(run: Run, data_dir: str | None = None, include_path: Sequence[str] | None = None) -> RunSpec:
    """The run's settings with its current scope (a run can be extended), and the folders given now. Raises RunError:
    ``run.json`` does not have them, or a newer dare-bench wrote it; UsageError: folders, as in :func:`rescore`."""
    settings = run.requested
    if not settings.get("tasks"):
        raise RunError(f"{run.path}/run.json does not have the run's settings; it cannot be scored again")
    refuse_inside(run.path, include_path or ())
    done = read_done(run.path)
    if done is not None:
        settings |= done.scope.plain()
    recorded_paths = settings.get("include_path")
    # Code runs in the sandbox or not at all, whatever the run did.
    settings |= {"include_path": list(include_path or ()), "unsafe_no_sandbox": False}
    try:
        spec = run_spec(**settings)
    except UsageError as error:
        raise RunError(f"{run.path}/run.json cannot be read by this dare-bench: {error}") from error
    spec = spec.model_copy(update={"data_dir": _data_dir(run, data_dir, spec.data_dir)})
    source_class = task_source(spec.harness)
    paths = source_class.paths(spec)
    if include_path is None and (recorded_paths or paths):
        named = ", ".join(map(repr, recorded_paths or paths))
        raise UsageError(
            f"{run.path}: its tasks came from {named[:300]}, and code that a run names is never loaded: give a folder"
            " with these tasks that you trust as --include-path"
        )
    if not paths:
        return spec
    named_spec = spec.model_copy(update={"tasks": tuple(run.top_level())})
    if paths := source_class.paths(named_spec):
        raise RunError(f"{run.path}: a task in the results is a path, {paths[0]!r}; the run is damaged")
    return named_spec


def refuse_inside(folder: Path, include_path: Sequence[str]) -> None:
    """Raise UsageError if code could be loaded from ``folder``, which contains runs: if the current folder or Python's
    path lies inside it, or an include path lies inside or above it."""
    folder = folder.resolve()
    for place in ("", *sys.path):
        if Path(place or Path.cwd()).resolve().is_relative_to(folder):
            named = f"{place!r} of Python's path" if place else "the current folder"
            raise UsageError(
                f"{named} lies inside {folder}, so that code could be loaded from the run: "
                "run the command from another folder"
            )
    for place in include_path:
        if not place.strip():
            raise UsageError(
                f"--include-path {place!r} names no folder; give one with the run's tasks, or leave it out"
            )
        root = Path(place).expanduser().resolve()
        if root.is_relative_to(folder) or folder.is_relative_to(root):
            raise UsageError(
                f"--include-path {place}: that folder and {folder} lie inside each other, so that code could be loaded"
                " from the run: give a folder apart from it, with tasks that you trust"
            )


def _data_dir(run: Run, given: str | None, recorded: str | None) -> str | None:
    """The folder given, else the recorded one if it exists outside the run, else the environment variable's."""
    if given is not None or recorded is None:
        return given
    folder = Path(os.path.expanduser(recorded))  # noqa: PTH111 - Path's own raises where nobody has that name
    if folder.is_dir() and not folder.resolve().is_relative_to(run.path.resolve()):
        return recorded
    if (default := os.environ.get("DARE_BENCH_DATA")) is not None:
        return default
    if folder.is_dir():
        raise UsageError(f"{run.path}: its data folder {recorded!r} lies inside the run; give yours as --data-dir")
    return recorded


def _refuse_new_failures(run: Run, failures: Sequence[Mapping[str, Any]]) -> None:
    """Raise DataError for a document that was scored in the run and cannot be scored now."""
    known = {(failure.task, str(failure.doc_id)) for failure in run.require_block().failures}
    new = [failure for failure in failures if (failure["task"], str(failure["doc_id"])) not in known]
    if new:
        first = new[0]
        more = f" (and {len(new) - 1} more)" if len(new) > 1 else ""
        raise DataError(
            f"{run.path}: document {first['doc_id']} of {first['task']!r}{more} cannot be scored here: {first['error']}"
        )


def _definitions(block: Block, now: Mapping[str, str], tasks: Sequence[str]) -> Iterator[str]:
    for task in tasks:
        before, after = block.tasks[task].fingerprint.partition(":"), now.get(task, "").partition(":")
        if before[0] != after[0]:
            yield (
                f"the definition of task {task!r} has changed: its templates, filters or scorer differ"
                f" ({before[0]} then, {after[0]} now)"
            )


def _scores(run: Run, results: Mapping[str, Any], tasks: Sequence[str] | None) -> Iterator[RescoredValue]:
    """Every recorded or new score; only of these tasks, if given."""
    before, after = _table(run.results), _table(plain(results))
    for name in dict.fromkeys([*before, *after]):
        if tasks is not None and (name not in tasks or members(run.results, name) != [name]):
            continue
        old, new = before.get(name, {}), after.get(name, {})
        for metric, filter_name in dict.fromkeys([*old, *new]):
            key = (metric, filter_name)
            yield RescoredValue(name, metric, filter_name, old.get(key), new.get(key))


def _table(results: Mapping[str, Any]) -> dict[str, dict[tuple[str, str], float]]:
    rows = {**results.get("results", {}), **(results.get("groups") or {})}
    return {name: {(m, f): value for m, f, value in metric_keys(row)} for name, row in rows.items()}


def _compared(run: Run, task: str, rows: Sequence[Mapping[str, Any]]) -> tuple[int, list[RescoredValue], list[str]]:
    """The number of a task's documents, the values that differ, and a note if targets do."""
    documents: set[str] = set()
    differing: list[RescoredValue] = []
    targets: dict[str, None] = {}
    for before, now in _pairs(run.samples(task), rows):
        doc, filter_name = _line(before or now)
        documents.add(doc)
        if before and str(before.get("target")) != str(now.get("target")):
            targets[doc] = None
        for metric in dict.fromkeys([*before.get("metrics", ()), *now.get("metrics", ())]):
            old, new = before.get(metric), plain(now.get(metric))
            if not same_value(old, new):
                differing.append(RescoredValue(task, metric, filter_name, old, new, doc))
    note = f"{len(targets)} documents of {task!r} have a different target now; the first is {next(iter(targets), None)}"
    return len(documents), differing, [note] if targets else []


def _pairs(
    recorded: Iterable[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Each line as recorded and as scored again; empty where one has no such line."""
    again = {_line(row): row for row in rows}
    for row in recorded:
        yield row, again.pop(_line(row), {})
    yield from (({}, row) for row in again.values())


def _line(row: Mapping[str, Any]) -> tuple[str, str]:
    """The document and filter of a sample line."""
    return str(row["doc_id"]), str(row.get("filter", "none"))


def same_value(first: Any, second: Any) -> bool:
    """Equal values; numbers, also inside lists, up to :data:`TOLERANCE`."""
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same_value, first, second))
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)
