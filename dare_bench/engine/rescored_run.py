"""Writing a run that was scored again as a new run directory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_bench import version
from dare_bench.analysis.score_intervals import confidence_intervals
from dare_bench.engine.environment import command
from dare_bench.engine.rescore import Rescored
from dare_bench.engine.result_files import document_line, task_hash
from dare_bench.engine.rundir import CommitMarker, RunFolder, new_folder
from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.program import installed
from dare_bench.reading import open_regular
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import file_digest, traces_name, write_results, write_samples
from dare_bench.runs.schema import UNSAFE_ALLOWED, Block, Execution, HarnessBlock, RunEvent
from dare_bench.runs.writer import atomic_file, ensure_folder

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
    run = done.run
    recorded = run.require_block()
    folder = new_folder(ensure_folder(out), f"{_SUFFIX.sub('', run.path.name)}-rescored")
    with RunFolder(folder) as place:
        about = place.begin({"spec": done.spec.model_dump(mode="json"), "command": command(), "from": run.run_id})
        date = about["date"]
        digests = {task: _write_task(folder, date, task, done) for task in recorded.tasks}
        block = _block(done, recorded, about, digests)
        write_results(folder, date, _results(done), block)
        scope = Scope.of(done.spec.limit, done.spec.samples)
        totals = {task: entry.n_total for task, entry in block.tasks.items()}
        place.commit(CommitMarker(block.status, "", scope, totals))
    return Run(folder)


def _write_task(folder: Path, date: str, task: str, done: Rescored) -> dict[str, str]:
    """Write samples with their new scores, and the recorded traces; returns the files' digests."""
    index = done.run.index(task)
    assert index is not None  # scoring has read it

    def lines() -> Iterator[dict[str, Any]]:
        for sample in done.harness.samples.get(task, ()):
            answers = index.document(sample["doc_id"]).answers
            yield document_line(
                sample,
                [{name: v for name, v in answer.items() if name not in _SCORING_FIELDS} for answer in answers],
            )

    digests = {"samples_sha256": write_samples(folder, date, task, lines())}
    if (traces := done.run.traces_file(task)) is not None:
        copy = folder / traces_name(task, date)
        with open_regular(traces, RunError) as source, atomic_file(copy) as target:
            shutil.copyfileobj(source, target)
        digests["traces_sha256"] = file_digest(copy)
    return digests


def _results(done: Rescored) -> dict[str, Any]:
    harness = done.harness
    scored = {name: harness.results[name] for name in _SCORED if name in harness.results}
    recorded = {name: value for name, value in done.run.results.items() if name not in (*_SCORED, "dare_bench")}
    hashes = {task: task_hash(rows) for task, rows in harness.samples.items()}
    return {**recorded, **scored, "lm_eval_version": installed("lm-eval"), "task_hashes": hashes}


def _block(done: Rescored, before: Block, about: Mapping[str, Any], digests: Mapping[str, Mapping[str, str]]) -> Block:
    harness, now = done.harness, str(about["created"])
    event = {
        "what": f"the recorded answers of {done.run.run_id} were scored again",
        "date": now,
        "from": done.run.run_id,
        "command": about["command"],
        "dare_bench": version.__version__,
        "same": done.same,
        "edited": [task for task, edited in done.edited.items() if edited],
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
