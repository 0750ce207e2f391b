"""An evaluation from end to end: settle its settings, find the finished run, or open the model and answer.

The same command resumes a run; a larger limit extends it; a finished run is returned as it is, and the requested
documents of a run with more become a run beside it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from dare_bench import suites
from dare_bench.config import RunSpec, check_names, run_spec
from dare_bench.engine import identity as ident
from dare_bench.engine.environment import program_warnings
from dare_bench.engine.hints import checked_harness
from dare_bench.engine.opener import Opener, split_adapter
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.engine.rundir import latest_with_prefix, part_folder, read_done
from dare_bench.engine.session import Session
from dare_bench.engine.sharding import check_workers
from dare_bench.engine.stopping import is_settled
from dare_bench.errors import DataError, UsageError
from dare_bench.harness.common.scope import Scope
from dare_bench.keywords import RunKeywords
from dare_bench.log import log
from dare_bench.model import Model
from dare_bench.protocols import LoadedModel
from dare_bench.runs.reader import Run


def evaluate(
    spec: RunSpec | None = None,
    *,
    model: str | Path | Model | LoadedModel | None = None,
    progress: bool = True,
    **fields: Unpack[RunKeywords],
) -> Run:
    """Evaluate a checkpoint on tasks and return its run.

    Args:
        spec: the settings; or give its fields by name: ``evaluate(model="tiny-llada", tasks="dare_sudoku", limit=50)``.
        model: a checkpoint (folder, hub id, bundled name), or an open model.
        progress: show progress on stderr.
        fields: fields of :class:`~dare_bench.config.RunSpec`; on top of ``spec`` if both are given.

    Raises:
        UsageError: unknown tasks or fields, invalid decoding values.
        CheckpointError, DataError, RunError, MemoryLimitError, SaveError: see the message. Samples answered until then
            are kept, and the same call continues from there.
    """
    spec, opened = resolve_spec(spec, model, fields)
    return _evaluate_spec(spec, Opener(opened), progress)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one of several runs: the run, or the one-line reason why it failed."""

    planned: PlannedRun
    run: Run | None
    reason: str | None = None


def evaluate_all(planned: Sequence[PlannedRun], *, progress: bool = True) -> Iterator[Outcome]:
    """Evaluate several runs, one after another, with each checkpoint opened once. A run whose settings or data are
    refused before anything is computed has the reason as its outcome, and the others continue. Raises CheckpointError,
    RunError, MemoryLimitError, SaveError: what concerns all runs ends all of them."""
    opener = Opener()
    for run in planned:
        try:
            yield Outcome(run, _evaluate_spec(resolve_spec(None, None, run.fields)[0], opener, progress))
        except (UsageError, DataError) as error:
            yield Outcome(run, None, str(error))


def _evaluate_spec(spec: RunSpec, opener: Opener, progress: bool) -> Run:
    source_class = checked_harness(spec)
    scope = Scope.of(spec.limit, spec.samples)
    content = opener.content(spec)
    run = None if spec.fresh else find_finished(spec, content, scope)
    if run is None:
        return Session(spec, opener.loaded(spec), opener.path(spec), content, source_class, progress).run(scope)
    return run


def find_finished(spec: RunSpec, content: str, scope: Scope) -> Run | None:
    """The finished run of this command's documents, looked up without opening the model; None if there is none."""
    prefix = ident.run_prefix(spec)
    signature = ident.request_signature(spec, content)
    for folder in latest_with_prefix(Path(spec.output_path), prefix):
        done = read_done(folder)
        if done is None or done.status != "complete" or done.signature != signature:
            continue
        if spec.until_halfwidth is None:
            if not done.scope.covers(scope, done.totals):
                continue
            if not scope.covers(done.scope, done.totals):
                part = read_done(folder := part_folder(folder, scope))
                if part is None or (part.status, part.signature, part.scope) != ("complete", signature, scope):
                    continue
        elif not is_settled(Run(folder).require_block(), spec):
            continue
        run = Run(folder)
        log.info("the run is finished; nothing to do (dare-bench eval --fresh starts a new run)")
        for text in program_warnings(run.block.programs) if run.block is not None else ():
            log.warning("%s", text)
        return run
    return None


def resolve_spec(spec: RunSpec | None, model: Any, fields: Mapping[str, Any]) -> tuple[RunSpec, Any]:
    """The complete spec, and the open model if one was given.

    Args:
        spec, model, fields: the arguments of :func:`evaluate`.

    Raises:
        UsageError: fields that are unknown, missing, invalid, or not of one run.
        CheckpointError: an adapter or its base is missing.
    """
    opened = None if isinstance(model, (str, Path)) else model
    spec = run_spec(**_single_run(_merged(spec, model, fields)))
    if spec.data_dir is None and (data_dir := os.environ.get("DARE_BENCH_DATA")):
        spec = spec.model_copy(update={"data_dir": data_dir})
    Scope.of(spec.limit, spec.samples)  # refuses both at once
    if spec.until_halfwidth is not None and spec.samples is not None:
        raise UsageError("--until-halfwidth chooses documents at random and --samples names them; omit one of them")
    check_workers(spec, opened)
    return split_adapter(spec, opened), opened


def _merged(spec: RunSpec | None, model: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """``fields`` on top of those of ``spec``, with the name of the model."""
    check_names(fields)
    given = {**(spec.model_dump() if spec is not None else {}), **fields}
    if isinstance(model, (str, Path)):
        given["model"] = str(model)
    elif model is not None and "model" not in given:
        names = (getattr(model, name, None) for name in ("checkpoint", "path", "name"))
        given["model"] = str(next(filter(None, names), type(model).__name__))
    return given


def _single_run(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of one run; a recipe without tasks names one if it has one entry. Raises UsageError: no model, no
    task, or a recipe or suite of several runs."""
    if "tasks" not in given and given.get("recipe") is not None:
        planned = plan(given)
        if len(planned) != 1:
            raise UsageError(
                f"recipe {given['recipe']!r} stands for {len(planned)} runs; name one of them: checkpoint/entry"
            )
        given = planned[0].fields
    if "model" not in given:
        raise UsageError("no model given; give --model: a folder, a hub id or a bundled name (dare-bench ls models)")
    if "tasks" not in given:
        raise UsageError(
            "no task given; use --tasks name,name, in Python tasks='name,name' (dare-bench ls tasks lists them)"
        )
    if isinstance(tasks := given["tasks"], str) and suites.find(tasks) is not None:
        raise UsageError(
            f"{tasks!r} is a suite of many runs; in Python: for outcome in evaluate_all(plan({{'model': ..., "
            f"'tasks': {tasks!r}}})), see docs/python.md; or dare-bench eval --tasks {tasks}"
        )
    return given
