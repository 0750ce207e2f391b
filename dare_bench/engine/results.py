"""From a harness's results and the journal to the files of a run: results, samples, traces."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dare_bench import recipes
from dare_bench.analysis.score_intervals import confidence_intervals
from dare_bench.config import RunSpec
from dare_bench.engine import answering
from dare_bench.engine.codec import to_answer
from dare_bench.engine.environment import environment
from dare_bench.engine.journal import Journal
from dare_bench.engine.meters import Meter, decoded_tokens, last_costs
from dare_bench.errors import RunError, UnknownNameError
from dare_bench.program import installed
from dare_bench.runs import schema
from dare_bench.runs.files import samples_name, traces_name, write_results, write_samples, write_traces
from dare_bench.runs.reader import Run
from dare_bench.runs.scores import weakest
from dare_bench.types import Generation, Request

log = logging.getLogger("dare_bench")

Piece = Callable[[int], str]
"""The text of one token."""


@dataclass
class Written:
    """What a run's results are made from."""

    spec: RunSpec
    about: Mapping[str, Any]
    """``run.json``: created, date, command, model, requests' settings by task."""
    requests: Sequence[Request]
    journal: Journal
    harness: Any
    """The task source's result (``results``, ``samples``, ``fingerprints``, ``notes``, ``failures``)."""
    piece: Piece


def answers_of(journal: Journal, request: Request) -> dict[str, Any] | None:
    """A request's journal record, or None if it failed."""
    return journal.sample(request.key) if request.key in journal else None


def answer_line(record: Mapping[str, Any]) -> dict[str, Any]:
    """A sample's entry in the ``dare_bench`` list of its document's lines."""
    answer = to_answer(dict(record))
    common = {name: getattr(answer, name) for name in ("nfe", "seconds", "tier")}
    line = {"key": record["key"], "kind": record["kind"], "seed": record["seed"], **common}
    if isinstance(answer, Generation):
        line |= {
            "reference_nfe": answer.reference_nfe,
            "tokens": len(answer.tokens),
            "tokens_to_eos": answer.tokens_to_eos,
            "decoded_tokens": decoded_tokens(answer),
            "tokens_per_s": answer.tokens_to_eos / answer.seconds if answer.seconds > 0 else None,
            "tpf": answer.tokens_to_eos / answer.nfe if answer.nfe else None,
            "finish_reason": answer.finish_reason,
            "margin": answer.margin if answer.margin is None or math.isfinite(answer.margin) else None,
            "residual_masks": answer.residual_masks,
            "trace_ref": record["key"] if answer.trajectory is not None else None,
            "repeat": record["repeat"],
        }
    else:
        line |= {name: getattr(answer, name) for name in ("value", "stderr", "is_greedy", "estimator", "draws")}
        line |= {name: None for name in ("value", "stderr") if not math.isfinite(line[name])}
    return line


def trace_line(record: Mapping[str, Any], piece: Piece) -> dict[str, Any] | None:
    """How a response came to be; None if it was not recorded. Events behind the response's end are left out."""
    answer = to_answer(dict(record))
    if not isinstance(answer, Generation) or answer.trajectory is None:
        return None
    events = [event for event in answer.trajectory if event.position < len(answer.tokens)]
    line = {
        "key": record["key"],
        "doc_id": record["doc_id"],
        "repeat": record["repeat"],
        "prompt_tokens": answer.prompt_tokens,
        "pieces": [piece(token) for token in answer.tokens],
        "events": [list(event) for event in events],
    }
    # What was written over later, or into the prompt, has no piece: whoever shows the steps needs its text.
    others = {e.token for e in events if e.position < 0 or answer.tokens[e.position] != e.token}
    return {**line, "others": {str(token): piece(token) for token in sorted(others)}} if others else line


def write(folder: Path, done: Written) -> schema.Block:
    """Write all files of a run but the commit marker; returns the ``dare_bench`` block.

    Raises:
        SaveError: a file could not be written.
    """
    date, before = str(done.about["date"]), _earlier(folder)
    _note_changes(done, before)
    by_task: dict[str, list[Request]] = {}
    for request in done.requests:
        by_task.setdefault(request.task, []).append(request)
    run_meter = Meter()
    tasks: dict[str, schema.TaskBlock] = {}
    for task in done.harness.fingerprints:
        meter = Meter()
        for request in by_task.get(task, ()):
            if (record := answers_of(done.journal, request)) is not None:
                answer = to_answer(record)
                meter.add(answer)
                run_meter.add(answer)
        digests = _write_task(folder, date, task, by_task.get(task, []), done)
        tasks[task] = _task_block(task, by_task.get(task, []), meter, done).model_copy(update=digests)
    block = _block(done, tasks, run_meter, before)
    write_results(folder, date, _lm_eval_keys(done, block), block)
    return block


def _write_task(folder: Path, date: str, task: str, requests: Sequence[Request], done: Written) -> dict[str, str]:
    """Sample and trace lines of one task; returns the files' digests. Without ``log_samples`` older ones go: they would
    tell of other scores."""
    if not done.spec.log_samples:
        for name in (samples_name(task, date), traces_name(task, date)):
            (folder / name).unlink(missing_ok=True)
        return {}
    by_document: dict[str, list[Request]] = {}
    for request in requests:
        by_document.setdefault(str(request.doc_id), []).append(request)

    def lines() -> Iterator[dict[str, Any]]:
        for sample in done.harness.samples.get(task, ()):
            found = (answers_of(done.journal, request) for request in by_document.get(str(sample["doc_id"]), ()))
            lines = [answer_line(record) for record in found if record is not None]
            known = sample.get("_answers") or [{} for _ in lines]
            row = {name: value for name, value in sample.items() if name != "_answers"}
            yield {**row, "dare_bench": [{**line, **more} for line, more in zip(lines, known, strict=True)]}

    def traces() -> Iterator[dict[str, Any]]:
        for request in requests:
            record = answers_of(done.journal, request) if request.kind == "generate" else None
            line = trace_line(record, done.piece) if record is not None else None
            if line is not None:
                yield line

    digests = {"samples_sha256": write_samples(folder, date, task, lines())}
    if any(request.kind == "generate" for request in requests):
        digests["traces_sha256"] = write_traces(folder, date, task, traces())
    return digests


def _task_block(task: str, requests: Sequence[Request], meter: Meter, done: Written) -> schema.TaskBlock:
    n_docs = len({str(request.doc_id) for request in requests})
    total = done.harness.results.get("n-samples", {}).get(task, {}).get("original")
    return schema.TaskBlock(
        fingerprint=done.harness.fingerprints[task],
        n_docs=n_docs,
        n_total=total,
        limit_applied=total is not None and n_docs < total,
        decoding=done.about["decoding"].get(task, {}),
        likelihood=done.about["likelihood"].get(task, {}),
        tier=weakest(meter.tiers),
        requests=len(requests),
        nfe=meter.nfe,
    )


def _block(
    done: Written, tasks: dict[str, schema.TaskBlock], meter: Meter, before: schema.Block | None
) -> schema.Block:
    failures = [schema.Failure(**failure) for failure in done.harness.failures]
    sessions = done.journal.records("session")
    costs = last_costs(done.journal.records("cost"))
    keys = [request.key for request in done.requests]
    programs = answering.answered(done.journal, keys)
    return schema.Block(
        status="incomplete" if failures else "complete",
        run_id=done.about["run_id"],
        created=done.about["created"],
        model=schema.ModelBlock(**done.about["model"]),
        harness=schema.HarnessBlock(name=done.spec.harness, version=installed(done.spec.harness) or "unknown"),
        tasks=tasks,
        seeds=done.spec.seeds,
        limit=done.spec.limit,
        repeats=done.spec.repeats,
        command=sessions[-1]["command"] if sessions else done.about["command"],
        environment=answering.environment(done.journal, keys, before.environment if before else None, environment()),
        programs=programs,
        decoding_requested=dict(done.spec.decoding),
        cost=meter.cost(costs),
        ci=confidence_intervals(done.harness.results, done.harness.samples),
        extraction=done.harness.extraction,
        execution=schema.Execution(**done.harness.execution) if done.harness.execution else None,
        suite=done.spec.part_of or (before.suite if before is not None else None),
        recipes=_recipes(done.spec, before),
        failures=failures,
        resumed_from=[schema.Resumed(date=s["date"], samples=s["held"]) for s in sessions[1:]],
        events=list(_events(done.journal)),
        notes=list(dict.fromkeys([*done.harness.notes, *answering.warnings(programs)])),
    )


def _recipes(spec: RunSpec, before: schema.Block | None) -> list[schema.RecipeBlock]:
    """The published scores that the run is held against, and where its settings are not theirs. Several recipes may ask
    for equal settings, hence for one run: those that it was made for before stay."""
    kept = {recipe.name: recipe for recipe in before.recipes} if before is not None else {}
    for name in dict.fromkeys([*kept, *([spec.recipe] if spec.recipe else [])]):
        with contextlib.suppress(UnknownNameError):  # a recipe of another version, which this one does not know
            recipe = recipes.find(name)[0]
            facts = {**recipe.block(), "deviations": recipes.deviations(recipe, spec)}
            kept[name] = schema.RecipeBlock.model_validate(facts)
    return list(kept.values())


def _note_changes(done: Written, before: schema.Block | None) -> None:
    """Put into the journal which tasks are other tasks than when the run's results were last written."""
    for task, fingerprint in done.harness.fingerprints.items():
        old = before.tasks[task].fingerprint if before is not None and task in before.tasks else fingerprint
        if old.partition(":")[0] != fingerprint.partition(":")[0]:
            what = f"task {task!r} has changed since this run was last scored: its prompts, filters or scorer differ"
            log.warning("%s; earlier scores of it are not comparable (--fresh keeps both runs)", what)
            done.journal.append({"type": "event", "what": what, "from": old, "to": fingerprint})


def _earlier(folder: Path) -> schema.Block | None:
    """What the folder's results said until now; None for a new run, or where nobody can read them any more."""
    try:
        return Run(folder).block
    except RunError:
        return None


def _events(journal: Journal) -> Iterator[schema.RunEvent]:
    """What happened on the way: rows halved for want of memory, unreadable journal lines, limits raised."""
    for cost in last_costs(journal.records("cost")):
        for halving in cost["halvings"]:
            what = {"what": "memory ran out: rows halved", "session": cost["session"]}
            yield schema.RunEvent.model_validate({**what, **halving})
    seen: list[dict[str, Any]] = []
    for event in journal.records("event"):
        if event not in seen:  # a damaged line is met again by every session
            seen.append(event)
            yield schema.RunEvent.model_validate({k: v for k, v in event.items() if k != "type"})


def _lm_eval_keys(done: Written, block: schema.Block) -> dict[str, Any]:
    """lm-eval's dict, with what its command adds to it: who was asked, hashes of what was said, and how long it took.

    What the harness gives wins, except where ours says more: lm-eval knows no hash of the model.
    """
    spec, name = done.spec, block.model.name
    given = dict(done.harness.results)
    ours = {"model_sha": block.model.content_hash, "batch_size": spec.max_rows or "auto"}
    config = {
        "model": "dare",
        "model_args": {"pretrained": spec.model, **spec.model_args},
        "model_num_parameters": block.model.parameters,
        "model_dtype": block.model.dtype,
        "model_revision": str(spec.model_args.get("revision") or ""),
        "batch_sizes": [],
        "device": done.about["device"],
        "use_cache": None,
        "limit": spec.limit,
        "bootstrap_iters": None,
        "gen_kwargs": dict(spec.decoding),
        **dict(zip(("random_seed", "numpy_seed", "torch_seed", "fewshot_seed"), spec.seeds, strict=True)),
    }
    made = {
        "model_source": "dare",
        "model_name": name,
        "model_name_sanitized": name.replace("/", "__"),
        "git_hash": block.environment.git_commit,
        "date": done.about["moment"],
        "lm_eval_version": installed("lm-eval"),
        "transformers_version": block.environment.transformers,
        "system_instruction": spec.system_instruction,
        "fewshot_as_multiturn": spec.fewshot_as_multiturn,
        "chat_template": None,
        "total_evaluation_time_seconds": str(block.cost.seconds),
    }
    whole = {**made, **given, "config": {**config, **given.get("config", {}), **ours}}
    return whole | {
        "system_instruction_sha": _sha(whole["system_instruction"]),
        "chat_template_sha": _sha(whole["chat_template"]),
        "task_hashes": {task: task_hash(rows) for task, rows in done.harness.samples.items()},
    }


def _sha(text: str | None) -> str | None:
    """lm-eval's hash of a text; None where there is none."""
    return hashlib.sha256(text.encode()).hexdigest() if text else None


def task_hash(rows: Sequence[Mapping[str, Any]]) -> str:
    """lm-eval's hash of a task's samples: of their documents, prompts and targets, one behind the other."""
    hashes = (row[name] for row in rows for name in ("doc_hash", "prompt_hash", "target_hash"))
    return hashlib.sha256("".join(hashes).encode()).hexdigest()
