"""A part of a run's documents as a run, scored from the recorded answers without the model.

It lies beside its run, in ``<run>-first-50``: what reads the results of the command (a script, ``compare``, a board)
finds the requested documents and no others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import version
from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine.environment import command
from dare_bench.engine.meters import Meter
from dare_bench.engine.recorded_answers import RecordedAnswers
from dare_bench.engine.rescore import recorded_source, refuse_new_failures
from dare_bench.engine.result_files import document_line, task_counts, task_hash
from dare_bench.engine.rundir import CommitMarker, RunFolder, read_done
from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.program import installed
from dare_bench.protocols import HarnessResult
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import write_results, write_samples, write_traces
from dare_bench.runs.schema import UNSAFE_ALLOWED, Block, Execution, Failure, HarnessBlock, RunEvent
from dare_bench.runs.writer import ensure_folder
from dare_bench.types import Request

log = logging.getLogger("dare_bench")

_SCORED = (
    "results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples",
    "opencompass", "opencompass_version",
)  # fmt: skip
"""Keys of a harness's results that scoring produces; all others describe the model and its settings."""
_SCORING_FIELDS = ("extraction", "extracted", "verdict")
"""Fields of an answer's record that scoring produces, not the model."""


def part_of(run: Run, spec: RunSpec, scope: Scope, content: str) -> Run:
    """The run; or if it has documents beside those of ``scope``, a run of these.

    Args:
        content: the hash of the model, which with ``spec`` tells whether an earlier part is this one.

    Raises:
        RunError: its sample lines are missing or edited.
    """
    done = read_done(run.path)
    if done is None or scope.covers(done.scope, done.totals):
        return run
    folder = run.path.with_name(f"{run.path.name}-{scope.folder_suffix()}")
    log.info("%s has %s; those requested are scored from its recorded answers", run.path, done.scope.text())
    signature, earlier = ident.request_signature(spec, content), read_done(folder)
    if earlier is not None and (earlier.status, earlier.signature, earlier.scope) == ("complete", signature, scope):
        return Run(folder)
    if any(run.samples_file(task) is None for task in run.tasks):
        raise RunError(
            f"{run.path} has {done.scope.text()} but no samples files (--no-log-samples), so that {scope.text()} cannot"
            " be scored alone; add --fresh for a new run"
        )
    if edited := [task for task in run.tasks if run.edited(task)]:
        raise RunError(f"{run.path}: the samples of {edited[0]} were changed after the run; add --fresh for a new run")
    source = recorded_source(run, spec)
    requests = source.requests()
    harness = source.run(RecordedAnswers(run, run.tasks, part=True))
    refuse_new_failures(run, harness.failures)
    return _write_part(folder, run, spec, requests, harness, signature)


def _write_part(
    folder: Path, run: Run, spec: RunSpec, requests: Sequence[Request], harness: HarnessResult, signature: str
) -> Run:
    """Write a part of a run's documents into ``folder`` and return it. Model and settings are those of the run; what
    each answer cost is summed over the part, and times, which are only known of the run, are left out.

    Args:
        requests, harness: of the part.

    Raises:
        SaveError: it cannot be written.
        RunError: another process is writing it.
    """
    with RunFolder(ensure_folder(folder)) as place:
        about = place.begin({"spec": spec.model_dump(mode="json"), "command": command(), "from": run.run_id})
        written = {task: _write_task(folder, about["date"], task, run, harness) for task in harness.fingerprints}
        block = _block(run, harness, about, {task: digests for task, (digests, _) in written.items()})
        tasks = {}
        for name, task in block.tasks.items():
            of_task = [request for request in requests if request.task == name]
            answers = {answer["key"]: answer for answer in written[name][1]}
            counts = task_counts(of_task, answers, task.n_total)
            tasks[name] = task.model_copy(update=counts)
        # With several programs it is not recorded which of them answered these documents.
        programs = [one.model_copy(update={"requests": len(requests)}) for one in block.programs]
        update = {
            "status": "incomplete" if harness.failures else "complete",
            "failures": [Failure(**failure) for failure in harness.failures],
            "tasks": tasks,
            "part_of": run.run_id,
            "limit": spec.limit,
            "command": about["command"],
            "programs": programs if len(programs) == 1 else block.programs,
            "cost": Meter().add(answer for _, answers in written.values() for answer in answers).cost(()),
            "resumed_from": [],
        }
        results = _results(run, harness)
        results["config"] = {**results.get("config", {}), "limit": spec.limit}
        results["total_evaluation_time_seconds"] = "0.0"
        block = block.model_copy(update=update)
        write_results(place.path, about["date"], results, block)
        totals = {task: entry.n_total for task, entry in block.tasks.items()}
        place.commit(CommitMarker(block.status, signature, Scope.of(spec.limit, spec.samples), totals))
    return Run(folder)


def _write_task(
    folder: Path, date: str, task: str, run: Run, harness: HarnessResult
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Write the sample lines of a task with their new scores, and the traces of their answers; returns the digests of
    the files and the records of the answers."""
    index = run.require_index(task)
    answers: dict[str, dict[str, Any]] = {}  # each document has a line for each filter, with the same answers

    def lines() -> Iterator[dict[str, Any]]:
        for sample in harness.samples.get(task, ()):
            recorded = [
                {name: value for name, value in answer.items() if name not in _SCORING_FIELDS}
                for answer in index.document(sample["doc_id"]).answers
            ]
            answers.update((answer["key"], answer) for answer in recorded)
            yield document_line(sample, recorded)

    digests = {"samples_sha256": write_samples(folder, date, task, lines())}
    if run.traces_file(task) is not None:
        traces = (line for line in run.traces(task) if line["key"] in answers)
        digests["traces_sha256"] = write_traces(folder, date, task, traces)
    return digests, list(answers.values())


def _results(run: Run, harness: HarnessResult) -> dict[str, Any]:
    scored = {name: harness.results[name] for name in _SCORED if name in harness.results}
    recorded = {name: value for name, value in run.results.items() if name not in (*_SCORED, "dare_bench")}
    hashes = {task: task_hash(rows) for task, rows in harness.samples.items()}
    return {**recorded, **scored, "lm_eval_version": installed("lm-eval"), "task_hashes": hashes}


def _block(
    run: Run,
    harness: HarnessResult,
    about: Mapping[str, Any],
    digests: Mapping[str, Mapping[str, str]],
) -> Block:
    before, now = run.require_block(), str(about["created"])
    event = {
        "what": f"a part of the documents of {run.run_id} was scored from its recorded answers",
        "date": now,
        "from": run.run_id,
        "command": about["command"],
        "dare_bench": version.__version__,
    }
    tasks = {
        name: task.model_copy(
            update={
                "traces_sha256": None,
                "fingerprint": harness.fingerprints[name],
                "data": harness.data.get(name),
                **digests[name],
            }
        )
        for name, task in before.tasks.items()
        if name in digests
    }
    return before.model_copy(
        update={
            "run_id": str(about["run_id"]),
            "created": now,
            "harness": HarnessBlock(name=before.harness.name, version=installed(before.harness.name) or "unknown"),
            "tasks": tasks,
            "ci": confidence_intervals(harness.results, harness.samples, stops=before.until_halfwidth is not None),
            "extraction": harness.extraction,
            "execution": Execution(**harness.execution) if harness.execution else None,
            "events": [
                *(e for e in before.events if e.what != UNSAFE_ALLOWED),
                RunEvent.model_validate(event),
            ],
            "notes": list(dict.fromkeys([*before.notes, *harness.notes])),
        }
    )
