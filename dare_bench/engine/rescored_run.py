"""Writing a run that was scored again, or a part of one, as a run directory of its own."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dare_bench import version
from dare_bench.analysis.score_intervals import confidence_intervals
from dare_bench.config import RunSpec
from dare_bench.engine.environment import command
from dare_bench.engine.meters import Meter
from dare_bench.engine.rescore import Rescored
from dare_bench.engine.result_files import document_line, task_hash
from dare_bench.engine.rundir import CommitMarker, RunFolder, new_folder
from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.harness.common.result import HarnessResult
from dare_bench.program import installed
from dare_bench.reading import open_regular
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import file_digest, traces_name, write_results, write_samples, write_traces
from dare_bench.runs.schema import UNSAFE_ALLOWED, Block, Execution, Failure, HarnessBlock, RunEvent
from dare_bench.runs.scores import weakest
from dare_bench.runs.writer import atomic_file, ensure_folder
from dare_bench.types import Request

_SUFFIX = re.compile(r"-rescored(-\d+)?$")
_SCORED = (
    "results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples",
    "opencompass", "opencompass_version",
)  # fmt: skip
"""Keys of a harness's results that scoring produces; all others describe the model and its settings."""
_SCORING_FIELDS = ("extraction", "extracted", "verdict")
"""Fields of an answer's record that scoring produces, not the model."""


def write_rescored(done: Rescored, out: Path) -> Run:
    """Write ``out/<run_id>-rescored`` (``-rescored-2``, ... if that exists) and return it. Model, settings and cost are
    those of the original run, which stays as it is; scores and intervals are new.

    Raises:
        SaveError: it cannot be written.
    """
    run, harness = done.run, done.harness
    recorded = run.require_block()
    folder = new_folder(ensure_folder(out), f"{_SUFFIX.sub('', run.path.name)}-rescored")
    with RunFolder(folder) as place:
        about = place.begin(_about(run, done.spec))
        date = about["date"]
        digests = {task: _write_samples(folder, date, task, run, harness) for task in recorded.tasks}
        for task in recorded.tasks:
            if (traces := run.traces_file(task)) is not None:
                copy = folder / traces_name(task, date)
                with open_regular(traces, RunError) as source, atomic_file(copy) as target:
                    shutil.copyfileobj(source, target)
                digests[task]["traces_sha256"] = file_digest(copy)
        edited = [task for task, edited in done.edited.items() if edited]
        what = f"the recorded answers of {run.run_id} were scored again"
        block = _block(run, harness, about, digests, {"what": what, "same": done.same, "edited": edited})
        write_results(folder, date, _results(run, harness), block)
        _commit(place, block, done.spec)
    return Run(folder)


def write_part(
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
    meters: dict[str, Meter] = {}
    whole, keys, digests = Meter(), set[str](), {}
    with RunFolder(ensure_folder(folder)) as place:
        about = place.begin(_about(run, spec))
        date = about["date"]
        for task in harness.fingerprints:
            meter = meters[task] = Meter()

            def count(answer: Mapping[str, Any], meter: Meter = meter) -> None:
                if answer["key"] not in keys:
                    keys.add(answer["key"])
                    meter.add_line(answer)
                    whole.add_line(answer)

            digests[task] = _write_samples(folder, date, task, run, harness, count)
            if run.traces_file(task) is not None:
                traces = (line for line in run.traces(task) if line["key"] in keys)
                digests[task]["traces_sha256"] = write_traces(folder, date, task, traces)
        what = f"a part of the documents of {run.run_id} was scored from its recorded answers"
        block = _block(run, harness, about, digests, {"what": what})
        block = _of_part(block, spec, requests, harness, meters).model_copy(update={"cost": whole.cost(())})
        results = _results(run, harness)
        results["config"] = {**results.get("config", {}), "limit": spec.limit}
        results["total_evaluation_time_seconds"] = "0.0"
        write_results(folder, date, results, block)
        _commit(place, block, spec, signature)
    return Run(folder)


def _about(run: Run, spec: RunSpec) -> dict[str, Any]:
    return {"spec": spec.model_dump(mode="json"), "command": command(), "from": run.run_id}


def _commit(place: RunFolder, block: Block, spec: RunSpec, signature: str = "") -> None:
    totals = {task: entry.n_total for task, entry in block.tasks.items()}
    place.commit(CommitMarker(block.status, signature, Scope.of(spec.limit, spec.samples), totals))


def _write_samples(
    folder: Path,
    date: str,
    task: str,
    run: Run,
    harness: HarnessResult,
    on_answer: Callable[[Mapping[str, Any]], None] = lambda answer: None,
) -> dict[str, str]:
    """Write samples with their new scores; returns the file's digest. ``on_answer`` gets the record of each answer of
    each line."""
    index = run.require_index(task)

    def lines() -> Iterator[dict[str, Any]]:
        for sample in harness.samples.get(task, ()):
            answers = index.document(sample["doc_id"]).answers
            for answer in answers:
                on_answer(answer)
            yield document_line(
                sample,
                [{name: v for name, v in answer.items() if name not in _SCORING_FIELDS} for answer in answers],
            )

    return {"samples_sha256": write_samples(folder, date, task, lines())}


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
    event: Mapping[str, Any],
) -> Block:
    before, now = run.require_block(), str(about["created"])
    event = {
        **event,
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
            "ci": confidence_intervals(harness.results, harness.samples),
            "extraction": harness.extraction,
            "execution": Execution(**harness.execution) if harness.execution else None,
            "events": [*(e for e in before.events if e.what != UNSAFE_ALLOWED), RunEvent.model_validate(event)],
            "notes": list(dict.fromkeys([*before.notes, *harness.notes])),
        }
    )


def _of_part(
    block: Block,
    spec: RunSpec,
    requests: Sequence[Request],
    harness: HarnessResult,
    meters: Mapping[str, Meter],
) -> Block:
    """The block with the counts and failures of the part alone."""
    tasks = {}
    for name, task in block.tasks.items():
        of_task = [request for request in requests if request.task == name]
        n_docs, meter = len({str(request.doc_id) for request in of_task}), meters[name]
        update = {
            "n_docs": n_docs,
            "limit_applied": task.n_total is not None and n_docs < task.n_total,
            "tier": weakest(meter.tiers),
            "requests": len(of_task),
            "nfe": meter.counted_nfe,
        }
        tasks[name] = task.model_copy(update=update)
    # With several programs it is not recorded which of them answered these documents.
    programs = [one.model_copy(update={"requests": len(requests)}) for one in block.programs[:1]]
    return block.model_copy(
        update={
            "status": "incomplete" if harness.failures else "complete",
            "failures": [Failure(**failure) for failure in harness.failures],
            "tasks": tasks,
            "limit": spec.limit,
            "command": command(),
            "programs": programs if len(block.programs) == 1 else block.programs,
            "resumed_from": [],
        }
    )
