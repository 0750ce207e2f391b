"""A run scored again, as a run directory of its own beside the one whose answers it holds."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dare_bench import version
from dare_bench.analysis.score_intervals import confidence_intervals
from dare_bench.engine.environment import command
from dare_bench.engine.rescore import Rescored
from dare_bench.engine.results import task_hash
from dare_bench.engine.rundir import CommitMarker, RunFolder
from dare_bench.engine.scope import Scope
from dare_bench.errors import RunError
from dare_bench.program import installed
from dare_bench.reading import open_regular
from dare_bench.runs.files import traces_name, write_results, write_samples
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNSAFE_ALLOWED, Block, Execution, HarnessBlock, RunEvent
from dare_bench.runs.writer import atomic_file, ensure_folder, save_error

_SUFFIX = re.compile(r"-rescored(-\d+)?$")
_SCORED = (
    "results", "groups", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples",
    "opencompass", "opencompass_version",
)  # fmt: skip
"""What a harness's result says of scores; all else in a results file tells of the model and how it was asked."""
_OF_SCORING = ("extraction", "extracted", "verdict")
"""Fields of an answer's record that scoring made, not the model."""


def write_rescored(done: Rescored, out: Path) -> Run:
    """Write ``out/<run_id>-rescored`` (``-rescored-2`` ... if that is there already) and return it. The original stays
    as it is; what it tells of the model, its settings and its cost is kept, scores and intervals are the new ones.

    Raises:
        SaveError: it cannot be written.
    """
    run = done.run
    assert run.block is not None
    folder = _new_folder(ensure_folder(out), _SUFFIX.sub("", run.path.name))
    with RunFolder(folder) as place:
        about = place.begin({"spec": done.spec.model_dump(mode="json"), "command": command(), "from": run.run_id})
        date = about["date"]
        digests = {task: _write_task(folder, date, task, done) for task in run.block.tasks}
        block = _block(done, run.block, about, digests)
        write_results(folder, date, _results(done), block)
        scope = Scope.of(done.spec.limit, done.spec.samples)
        totals = {task: entry.n_total for task, entry in block.tasks.items()}
        place.commit(CommitMarker(block.status, "", scope, totals))
    return Run(folder)


def _new_folder(out: Path, name: str) -> Path:
    number = 1
    while True:
        folder = out / f"{name}-rescored{'' if number == 1 else f'-{number}'}"
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise save_error(folder, error) from error
        else:
            return folder


def _write_task(folder: Path, date: str, task: str, done: Rescored) -> dict[str, str]:
    """Samples with their new scores, and the traces as they are; returns the files' digests."""
    index = done.run.index(task)
    assert index is not None  # scoring has read it

    def lines() -> Iterator[dict[str, Any]]:
        for sample in done.harness.samples.get(task, ()):
            answers = [
                {name: value for name, value in record.items() if name not in _OF_SCORING}
                for record in index.document(sample["doc_id"]).answers
            ]
            known = sample.get("_answers") or [{} for _ in answers]
            row = {name: value for name, value in sample.items() if name != "_answers"}
            yield {**row, "dare_bench": [{**answer, **more} for answer, more in zip(answers, known, strict=True)]}

    digests = {"samples_sha256": write_samples(folder, date, task, lines())}
    if (traces := done.run.traces_file(task)) is not None:
        digests["traces_sha256"] = _copy(traces, folder / traces_name(task, date))
    return digests


def _copy(source: Path, target: Path) -> str:
    """A file as it is, hashed on its way."""
    digest = hashlib.sha256()
    with open_regular(source, RunError) as given, atomic_file(target) as file:
        while portion := given.read(1 << 20):
            file.write(portion)
            digest.update(portion)
    return digest.hexdigest()


def _results(done: Rescored) -> dict[str, Any]:
    again = done.harness
    told = {name: again.results[name] for name in _SCORED if name in again.results}
    kept = {name: value for name, value in done.run.results.items() if name != "dare_bench" and name not in _SCORED}
    hashes = {task: task_hash(rows) for task, rows in again.samples.items()}
    return {**kept, **told, "lm_eval_version": installed("lm-eval"), "task_hashes": hashes}


def _block(done: Rescored, before: Block, about: Mapping[str, Any], digests: Mapping[str, Mapping[str, str]]) -> Block:
    again, now = done.harness, str(about["created"])
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
        name: task.model_copy(update={"traces_sha256": None, "fingerprint": again.fingerprints[name], **digests[name]})
        for name, task in before.tasks.items()
    }
    return before.model_copy(
        update={
            "run_id": str(about["run_id"]),
            "created": now,
            "harness": HarnessBlock(name=before.harness.name, version=installed(before.harness.name) or "unknown"),
            "tasks": tasks,
            "ci": confidence_intervals(again.results, again.samples),
            "extraction": again.extraction,
            "execution": Execution(**again.execution) if again.execution else None,
            "events": [*(e for e in before.events if e.what != UNSAFE_ALLOWED), RunEvent.model_validate(event)],
            "notes": list(dict.fromkeys([*before.notes, *again.notes])),
        }
    )
