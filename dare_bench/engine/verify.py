"""The checks of ``dare-bench leaderboard verify``: may a pack that somebody else made be shown beside our own runs?

Nothing of a pack is executed or imported, except generated code, in the sandbox. Speeds, hardware, versions and the
checkpoint's name and lineage stay what the pack says.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

from dare_bench.analysis.agreement import same_answers
from dare_bench.analysis.document_view import document_view
from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.analysis.settings import differing
from dare_bench.engine.evaluate import evaluate
from dare_bench.engine.identity import adapter_content
from dare_bench.engine.meters import Meter
from dare_bench.engine.opener import Opener, split_adapter
from dare_bench.engine.rescore import Rescored, rescore, same_value
from dare_bench.engine.rundir import read_done
from dare_bench.engine.soundness import Check, guarded
from dare_bench.errors import DareError, RunError
from dare_bench.runs.pack import AGAIN, open_pack, private_parts, refuse_secrets
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import CI, Block, TaskBlock
from dare_bench.runs.scores import weakest
from dare_bench.runs.text import counted, listed, without_paths
from dare_bench.types import Decoding

LIKELIHOOD_TOLERANCE = 1e-3
"""Relative, or in nats below 1: what other hardware or numbers of threads change."""
_REVISION = re.compile(r"hub \S+@[0-9a-f]{7,40}")
Outcome = tuple[bool | None, str]


def verify(
    path: str | Path,
    *,
    model: str | None = None,
    device: str | None = None,
    documents: int = 3,
    data_dir: str | None = None,
    include_path: Sequence[str] | None = None,
    allow_partial: bool = False,
) -> Iterator[Check]:
    """Check a pack; yields each result, and ends after the files, or after the scores, if one of their checks fails.

    Args:
        model: the checkpoint (its base and adapter, or the adapter alone), with which ``documents`` randomly chosen
            documents of each task are answered again on ``device``; None: none are.
        data_dir, include_path: as those of :func:`~dare_bench.engine.rescore.rescore`.
        allow_partial: accept runs with a limit, and without the answers of documents that failed.
    """
    try:
        pack = open_pack(path)
        block = pack.require_block()
    except RunError as error:
        yield Check("files", False, str(error))
        return
    files = [
        Check("files", True, f"{pack.run_id}: {counted(len(pack.tasks), 'task')}, schema {block.schema_version}"),
        guarded("public", lambda: _public(pack)),
        guarded("digests", lambda: _digests(pack)),
        guarded("complete", lambda: _complete(pack, block, allow_partial)),
        guarded("costs", lambda: _costs(pack, block)),
    ]
    yield from files
    if not all(check.passed for check in files):
        return
    try:
        rescored = rescore(pack, data_dir=data_dir, include_path=include_path)
    except DareError as error:
        yield Check("scores", False, str(error))
        return
    scores = [
        guarded("data", lambda: _data(block, rescored)),
        guarded("scores", lambda: _scores(block, rescored)),
    ]
    yield from scores
    if model is not None and all(check.passed for check in scores):
        yield guarded("answers", lambda: _answers(rescored, block, model, device, documents))


def _public(pack: Run) -> Outcome:
    for file in sorted(pack.path.iterdir()):
        refuse_secrets(file)
    if private := private_parts(pack):
        return False, f"{listed(private, 3)} is not part of a pack; {AGAIN}"
    return True, "no folders, addresses or keys"


def _digests(pack: Run) -> Outcome:
    states = {"results": pack.results_edited}
    for task in pack.tasks:
        states[f"samples of {task}"] = pack.edited(task)
        if pack.traces_file(task) is not None:
            states[f"traces of {task}"] = pack.traces_edited(task)
    if bad := [name for name, edited in states.items() if edited is not False]:
        return False, f"{listed(bad, 3)}: edited after the run, or without a digest; submit the run as it was written"
    return True, f"SHA-256 of {counted(len(states), 'file')}"


def _complete(pack: Run, block: Block, allow_partial: bool) -> Outcome:
    """All documents of each task, or a part of them that the results state."""
    done = read_done(pack.path)
    totals = {task: entry.n_total for task, entry in block.tasks.items()}
    if done is None or (done.status, done.totals) != (block.status, totals):
        return False, f"done.json is not that of these results; {AGAIN}"
    partial = [f"the run is {pack.status}"] if pack.status != "complete" else []
    for task, entry in block.tasks.items():
        failed = {str(failure.doc_id) for failure in block.failures if failure.task == task}
        if (lines := len(pack.require_index(task)) + len(failed)) != entry.n_docs:
            return False, f"{task}: {lines} documents in the samples and failures, {entry.n_docs} in the results"
        if entry.n_total is not None and entry.n_docs < entry.n_total:
            partial.append(f"{task}: {entry.n_docs} of {entry.n_total} documents")
    if partial and not allow_partial:
        return False, f"{listed(partial, 3)}; finish the run, or allow parts: --allow-partial"
    total = sum(entry.n_docs for entry in block.tasks.values())
    return True, "; ".join([counted(total, "document"), *partial])


def _costs(pack: Run, block: Block) -> Outcome:
    """Every line fits the schema, and the lines' costs are those of each task and of the run. The costs of documents
    that failed are in no line."""
    total = Meter()
    for task, entry in block.tasks.items():
        records = [record for document in pack.documents(task) for record in document.answers]
        meter, _ = Meter().add(records), total.add(records)
        lines = meter.requests, meter.counted_nfe, weakest(meter.tiers)
        if (stated := (entry.requests, entry.nfe, entry.tier)) != lines and not block.failures:
            return False, f"{task}: requests, forward passes, tier are {lines} in the samples, {stated} in the results"
    sums, cost = (total.requests, total.counted_nfe, total.tokens_to_eos), block.cost
    if (summed := (cost.requests, cost.nfe, cost.tokens_to_eos)) != sums and not block.failures:
        return False, f"requests, forward passes, tokens are {sums} in the samples, {summed} in the results"
    return True, f"{counted(total.requests, 'request')}, {total.nfe:,} forward passes, {total.tokens_to_eos:,} tokens"


def _data(block: Block, rescored: Rescored) -> Outcome:
    """Documents, prompts and scorer are those of here; data of the hub may have another revision with the same
    documents."""
    for task, entry in block.tasks.items():
        here = without_paths(rescored.harness.data.get(task))
        if entry.data != here and not _REVISION.fullmatch(entry.data or ""):
            return False, (
                f"{task}: its documents came from {entry.data or 'an unknown place'}, here they come from"
                f" {here or 'the task'}; evaluate with the data of this board"
            )
        total = rescored.harness.results.get("n-samples", {}).get(task, {}).get("original")
        if entry.n_total != total:
            return False, f"{task}: the pack says that it has {entry.n_total} documents in all, here it has {total}"
        if entry.fingerprint != rescored.harness.fingerprints[task]:
            return False, (
                f"{task}: documents, prompts or scorer have the fingerprint {entry.fingerprint}, here"
                f" {rescored.harness.fingerprints[task]}; evaluate with the versions of this board"
            )
    return True, listed([f"{task}: {entry.data or 'made by the task'}" for task, entry in block.tasks.items()], 3)


def _scores(block: Block, rescored: Rescored) -> Outcome:
    """Scores, documents' values, intervals and rates of extraction are those of the recorded answers."""
    values = [score for score in rescored.scores if not score.same] + rescored.documents
    if values:
        first = values[0]
        of_document = "" if first.doc_id is None else f", document {first.doc_id}"
        return False, (
            f"{counted(len(values), 'value')} changed; the first is {first.task} {first.metric},{first.filter}"
            f"{of_document}: {first.recorded} in the pack, {first.again} here"
        )
    harness, stops = rescored.harness, block.until_halfwidth is not None
    again = confidence_intervals(harness.results, harness.samples, stops=stops)
    for task in dict.fromkeys([*block.ci, *again]):
        if not same_value(_bounds(block.ci.get(task)), _bounds(again.get(task))):
            return False, f"{task}: the intervals do not follow from its documents"
    if block.extraction != rescored.harness.extraction:
        return False, "the counts of extracted answers do not follow from the answers"
    return True, f"{counted(len(rescored.scores), 'score')}, values of {counted(rescored.counted, 'document')}"


def _bounds(intervals: Mapping[str, CI] | None) -> list[Any]:
    return [[key, ci.method, ci.level, ci.lo, ci.hi, ci.n] for key, ci in sorted((intervals or {}).items())]


def _answers(rescored: Rescored, block: Block, model: str, device: str | None, most: int) -> Outcome:
    """Randomly chosen documents, so that nobody knows before which ones, answered again by the checkpoint."""
    pack = rescored.run
    if block.model.engine is not None:
        return None, f"answered by {block.model.engine.label}; only answers of dare-bench's sampler are drawn again"
    spec = split_adapter(rescored.spec.model_copy(update={"model": model, "device": device, "limit": None}))
    content = Opener().content(spec)
    if (content, adapter_content(spec, content)) != (block.model.content_hash, block.model.adapter_hash):
        return (
            False,
            f"{model} is another checkpoint: its content is {content[:23]}, not {block.model.content_hash[:23]}",
        )
    chosen = {task: sorted(_chosen(pack, task, most)) for task in block.tasks}
    with tempfile.TemporaryDirectory() as folder:
        again = evaluate(spec.model_copy(update={"samples": chosen, "output_path": folder}), progress=False)
        for task, entry in again.require_block().tasks.items():
            if settings := differing(_decided_by(block.tasks[task]), _decided_by(entry)):
                name, (stated, here) = next(iter(settings.items()))
                return False, f"{task}: {name} is {stated} in the pack, and {here} with the requested settings"
        results = [_redrawn(pack, again, task, doc) for task, docs in chosen.items() for doc in docs]
    if differing_answers := [where for where, outcome in results if outcome == "differ"]:
        return False, (
            f"{len(differing_answers)} of {counted(len(results), 'document')} have other answers here:"
            f" {listed(differing_answers, 5)}; answered on {_machine(block)}, here on {_machine(again.require_block())}"
        )
    ways = ", ".join(f"{n} by {way}" for way, n in Counter(outcome for _, outcome in results).items())
    return True, f"{counted(len(results), 'document')} drawn again ({ways}): {listed([w for w, _ in results], 5)}"


def _chosen(pack: Run, task: str, most: int) -> list[int]:
    ids = [int(doc_id) for doc_id in pack.require_index(task).ids]
    return SystemRandom().sample(ids, min(most, len(ids)))


def _decided_by(task: TaskBlock) -> dict[str, Any]:
    """The settings that decide a task's answers."""
    return {name: v for name, v in {**task.decoding, **task.likelihood}.items() if name not in Decoding.hidden}


def _redrawn(pack: Run, again: Run, task: str, doc_id: int) -> tuple[str, str]:
    """A document, and what its answers are equal by, or ``near tie`` or ``differ``."""
    first, second = (run.require_index(task).document(doc_id) for run in (pack, again))
    views = document_view(first), document_view(second)
    same, basis = same_answers(first, second, *views, tolerance=LIKELIHOOD_TOLERANCE)
    tie = any(record.get("near_tie") for document in (first, second) for record in document.answers)
    return f"{task} {doc_id}", basis if same else "near tie" if tie else "differ"


def _machine(block: Block) -> str:
    place = block.environment
    return f"{place.gpu or place.cpu}, torch {place.torch}, {block.model.dtype}"
