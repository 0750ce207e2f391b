"""Write the files of a run (results, samples, traces) from the results of the harness and the journal."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench import recipes
from dare_bench.analysis.intervals import confidence_intervals
from dare_bench.config import RunSpec
from dare_bench.engine.codec import Piece, to_answer, trace_of
from dare_bench.engine.environment import current_environment, environment_of, program_warnings, programs_of
from dare_bench.engine.journal import Journal
from dare_bench.engine.meters import Meter, decoded_tokens, last_costs, raw_tokens
from dare_bench.errors import RunError, UnknownNameError
from dare_bench.log import log
from dare_bench.program import installed
from dare_bench.protocols import HarnessResult
from dare_bench.runs import schema
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import samples_name, traces_name, write_results, write_samples, write_traces
from dare_bench.runs.scores import weakest
from dare_bench.types import Generation, Request


@dataclass
class RunRecord:
    """Everything that a run's result files are written from."""

    spec: RunSpec
    about: Mapping[str, Any]
    """The contents of ``run.json``, and the resolved settings by task."""
    requests: Sequence[Request]
    journal: Journal
    harness: HarnessResult
    piece: Piece


def answer_line(record: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's entry in the ``dare_bench`` list of its document's lines."""
    answer = to_answer(dict(record))
    common = {name: getattr(answer, name) for name in ("nfe", "seconds", "tier")}
    line = {"key": record["key"], "kind": record["kind"], "seed": record["seed"], **common}
    if isinstance(answer, Generation):
        line |= {
            "reference_nfe": answer.reference_nfe,
            "tokens": raw_tokens(answer),
            "tokens_to_eos": answer.tokens_to_eos,
            "decoded_tokens": decoded_tokens(answer),
            "tokens_per_s": answer.tokens_to_eos / answer.seconds if answer.seconds > 0 else None,
            "tpf": answer.tokens_to_eos / answer.nfe if answer.nfe else None,
            "finish_reason": answer.finish_reason,
            "near_tie": answer.near_tie,
            "residual_masks": answer.residual_masks,
            "trace_ref": record["key"] if answer.trajectory is not None else None,
            "repeat": record["repeat"],
        }
    else:
        line |= {name: getattr(answer, name) for name in ("value", "stderr", "is_greedy", "estimator", "draws")}
        line |= {name: None for name in ("value", "stderr") if not math.isfinite(line[name])}
        line |= {"deviations": answer.deviations} if answer.deviations else {}
        line |= {"separated": answer.separated} if answer.separated is not None else {}
    return line


def trace_line(record: Mapping[str, Any], piece: Piece) -> dict[str, Any] | None:
    """The unmasking trace of a response; None if it was not recorded. Events after the response's end are left out, and
    so are the events' log probabilities, which only the journal has."""
    answer = to_answer(dict(record))
    if not isinstance(answer, Generation) or answer.trajectory is None:
        return None
    named = {name: record[name] for name in ("key", "doc_id", "repeat")}
    return {**named, "prompt_tokens": answer.prompt_tokens, **trace_of(answer, piece)}


def _document_line(sample: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A harness's sample as a line of the samples file, with the records of its answers (see :func:`answer_line`)."""
    scoring = sample.get("_answers") or [{} for _ in answers]
    line = {name: value for name, value in sample.items() if name != "_answers"}
    return {**line, "dare_bench": [{**answer, **scored} for answer, scored in zip(answers, scoring, strict=True)]}


def write(folder: Path, run: RunRecord) -> schema.Block:
    """Write all files of a run except the commit marker; returns the ``dare_bench`` block. Raises SaveError: a file
    could not be written."""
    date, before = str(run.about["date"]), _earlier(folder)
    _record_changes(run, before)
    requests: dict[str, list[Request]] = {task: [] for task in run.harness.fingerprints}
    for request in run.requests:
        requests.setdefault(request.task, []).append(request)
    total = Meter()
    tasks: dict[str, schema.TaskBlock] = {}
    for task in run.harness.fingerprints:
        of_task = {record["key"]: answer_line(record) for record in _records(run.journal, requests[task])}
        digests = _write_task(folder, date, task, requests[task], of_task, run)
        tasks[task] = _task_block(task, requests[task], of_task, run).model_copy(update=digests)
        total.add(of_task.values())
    block = _block(run, tasks, total, before)
    write_results(folder, date, _lm_eval_keys(run, block), block)
    return block


def _records(journal: Journal, requests: Iterable[Request]) -> Iterator[dict[str, Any]]:
    """The journal's records of these requests, without failed ones."""
    return (journal.sample(request.key) for request in requests if request.key in journal)


def _write_task(
    folder: Path,
    date: str,
    task: str,
    requests: Sequence[Request],
    answers: Mapping[str, Mapping[str, Any]],
    run: RunRecord,
) -> dict[str, str]:
    """Write sample and trace lines of one task, given its answers by key; returns the files' digests. Without
    ``log_samples``, files of an earlier session are removed: their scores may be out of date."""
    if not run.spec.log_samples:
        for name in (samples_name(task, date), traces_name(task, date)):
            (folder / name).unlink(missing_ok=True)
        return {}
    by_document: dict[str, list[Mapping[str, Any]]] = {}
    for request in requests:
        if request.key in answers:
            by_document.setdefault(str(request.doc_id), []).append(answers[request.key])
    samples = run.harness.samples.get(task, ())
    lines = (_document_line(sample, by_document.get(str(sample["doc_id"]), ())) for sample in samples)
    digests = {"samples_sha256": write_samples(folder, date, task, lines)}
    if generated := [request for request in requests if request.kind == "generate"]:
        traces = (trace_line(record, run.piece) for record in _records(run.journal, generated))
        digests["traces_sha256"] = write_traces(folder, date, task, filter(None, traces))
    return digests


def _task_block(
    task: str, requests: Sequence[Request], answers: Mapping[str, Mapping[str, Any]], run: RunRecord
) -> schema.TaskBlock:
    total = run.harness.results.get("n-samples", {}).get(task, {}).get("original")
    n_docs, meter = len({str(request.doc_id) for request in requests}), Meter().add(answers.values())
    return schema.TaskBlock(
        fingerprint=run.harness.fingerprints[task],
        n_total=total,
        decoding=run.about["decoding"].get(task, {}),
        likelihood=run.about["likelihood"].get(task, {}),
        data=run.harness.data.get(task),
        n_docs=n_docs,
        limit_applied=total is not None and n_docs < total,
        tier=weakest(meter.tiers),
        requests=len(requests),
        nfe=meter.counted_nfe,
        undecided=_undecided(requests, answers),
    )


def _undecided(requests: Iterable[Request], answers: Mapping[str, Mapping[str, Any]]) -> int | None:
    """The number of documents whose adaptive draws reached their limit; None without adaptive draws."""
    ends = {request.document: answers.get(request.key, {}).get("separated") for request in requests}
    known = [separated for separated in ends.values() if separated is not None]
    return known.count(False) if known else None


def _block(
    run: RunRecord, tasks: dict[str, schema.TaskBlock], meter: Meter, before: schema.Block | None
) -> schema.Block:
    failures = [schema.Failure(**failure) for failure in run.harness.failures]
    sessions = run.journal.records("session")
    costs = last_costs(run.journal.records("cost"))
    keys = [request.key for request in run.requests]
    programs = programs_of(run.journal, keys)
    return schema.Block(
        status="incomplete" if failures else "complete",
        run_id=run.about["run_id"],
        created=run.about["created"],
        model=schema.ModelBlock(**run.about["model"]),
        harness=schema.HarnessBlock(name=run.spec.harness, version=installed(run.spec.harness) or "unknown"),
        tasks=tasks,
        seeds=run.spec.seeds,
        limit=run.spec.limit,
        until_halfwidth=run.spec.until_halfwidth,
        repeats=run.spec.repeats,
        command=sessions[-1]["command"] if sessions else run.about["command"],
        environment=environment_of(run.journal, keys, before.environment if before else None, current_environment()),
        programs=programs,
        decoding_requested=dict(run.spec.decoding),
        cost=meter.cost(costs),
        ci=confidence_intervals(run.harness.results, run.harness.samples, stops=run.spec.until_halfwidth is not None),
        extraction=run.harness.extraction,
        execution=schema.Execution(**run.harness.execution) if run.harness.execution else None,
        part_of=run.about["from"],
        suite=run.spec.part_of or (before.suite if before is not None else None),
        recipes=_recipes(run.spec, before),
        failures=failures,
        resumed_from=[schema.Resumed(date=s["date"], samples=s["held"]) for s in sessions[1:]],
        events=list(_events(run.journal)),
        notes=list(dict.fromkeys([*run.harness.notes, *program_warnings(programs)])),
    )


def _recipes(spec: RunSpec, before: schema.Block | None) -> list[schema.RecipeBlock]:
    """The published scores that the run is compared with, and where its settings deviate from theirs. Several recipes
    may have equal settings, hence share a run: earlier recipes of the run stay."""
    blocks = {recipe.name: recipe for recipe in before.recipes} if before is not None else {}
    for name in dict.fromkeys([*blocks, *([spec.recipe] if spec.recipe else [])]):
        with contextlib.suppress(UnknownNameError):  # a recipe of another version of dare-bench
            recipe = recipes.find(name)[0]
            deviations = recipes.deviations(recipe, spec)
            blocks[name] = schema.RecipeBlock.model_validate({**recipe.block(), "deviations": deviations})
    return list(blocks.values())


def _record_changes(run: RunRecord, before: schema.Block | None) -> None:
    """Record in the journal which tasks have changed since the run's results were last written."""
    for task, fingerprint in run.harness.fingerprints.items():
        old = before.tasks[task].fingerprint if before is not None and task in before.tasks else fingerprint
        if old.partition(":")[0] != fingerprint.partition(":")[0]:
            what = f"task {task!r} has changed since this run was last scored: its prompts, filters or scorer differ"
            log.warning("%s; earlier scores of it are not comparable (--fresh keeps both runs)", what)
            run.journal.append({"type": "event", "what": what, "from": old, "to": fingerprint})


def _earlier(folder: Path) -> schema.Block | None:
    """The block of the folder's results so far; None for a new run, or if they cannot be read."""
    try:
        return Run(folder).block
    except RunError:
        return None


def _events(journal: Journal) -> Iterator[schema.RunEvent]:
    """Events of the run: rows halved when memory ran out, unreadable journal lines, raised limits."""
    for cost in last_costs(journal.records("cost")):
        for halving in cost["halvings"]:
            event = {"what": "memory ran out: rows halved", "session": cost["session"]}
            yield schema.RunEvent.model_validate({**event, **halving})
    distinct: list[dict[str, Any]] = []
    for event in journal.records("event"):
        if event not in distinct:  # every session records a damaged line again
            distinct.append(event)
            yield schema.RunEvent.model_validate({k: v for k, v in event.items() if k != "type"})


def _lm_eval_keys(run: RunRecord, block: schema.Block) -> dict[str, Any]:
    """lm-eval's dict, with what its command adds to it: model, hashes of prompts and settings, and evaluation time. The
    harness's values win, except those of ``ours``, which lm-eval does not know."""
    spec, name = run.spec, block.model.name
    results = dict(run.harness.results)
    adapter = {"peft": spec.adapter} if spec.adapter else {}
    ours = {
        "model": "dare",
        "model_args": {"pretrained": spec.model, **adapter, **spec.model_args},
        "model_sha": block.model.content_hash,
        "batch_size": spec.max_rows or "auto",
        "device": run.about["device"],
        "limit": spec.limit,
    }
    config: dict[str, Any] = {
        "model_num_parameters": block.model.parameters,
        "model_dtype": block.model.dtype,
        "model_revision": str(spec.model_args.get("revision") or ""),
        "batch_sizes": [],
        "use_cache": None,
        "bootstrap_iters": None,
        "gen_kwargs": dict(spec.decoding),
        **dict(zip(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), spec.seeds, strict=True)),
    }
    added = {
        "model_source": "dare",
        "model_name": name,
        "model_name_sanitized": name.replace("/", "__"),
        "git_hash": block.environment.git_commit,
        "upper_git_hash": None,
        "pretty_env_info": "\n".join(f"{name}: {value}" for name, value in block.environment if value is not None),
        "date": run.about["moment"],
        "lm_eval_version": installed("lm-eval"),
        "transformers_version": block.environment.transformers,
        "system_instruction": spec.system_instruction,
        "fewshot_as_multiturn": spec.fewshot_as_multiturn,
        "chat_template": None,
        "total_evaluation_time_seconds": str(block.cost.seconds),
    }
    results = {**added, **results, "config": {**config, **results.get("config", {}), **ours}}
    return results | {
        "system_instruction_sha": _sha(results["system_instruction"]),
        "chat_template_sha": _sha(results["chat_template"]),
        "task_hashes": {task: _task_hash(rows) for task, rows in run.harness.samples.items()},
    }


def _sha(text: str | None) -> str | None:
    """lm-eval's hash of a text; None without one."""
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def _task_hash(rows: Sequence[Mapping[str, Any]]) -> str:
    """lm-eval's hash of a task's samples: of the concatenated hashes of documents, prompts and targets."""
    hashes = (row[name] for row in rows for name in ("doc_hash", "prompt_hash", "target_hash"))
    return hashlib.sha256("".join(hashes).encode()).hexdigest()
