"""An evaluation from end to end: open, find the run, answer what is missing, score, write, commit.

The same command resumes; a larger limit extends; a finished run is given back as it is.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack

from dare_bench import fingerprint, program, suites
from dare_bench.config import RunSpec, check_names, run_spec
from dare_bench.engine import answering, results
from dare_bench.engine import identity as ident
from dare_bench.engine.environment import command
from dare_bench.engine.hints import check
from dare_bench.engine.journal import Journal
from dare_bench.engine.opening import Opener, split_adapter
from dare_bench.engine.plan import PlannedRun, plan
from dare_bench.engine.progress import watcher
from dare_bench.engine.queue import Queue
from dare_bench.engine.rundir import CommitMarker, RunFolder, choose, latest_with_prefix, read_done
from dare_bench.engine.scope import Scope, joined
from dare_bench.engine.sharding import Shards, sharded
from dare_bench.errors import DataError, UsageError
from dare_bench.keywords import RunKeywords
from dare_bench.loading import locate
from dare_bench.model import Model
from dare_bench.protocols import LoadedModel
from dare_bench.registry import registry
from dare_bench.runs import lineage
from dare_bench.runs.fields import MAX_TASKS
from dare_bench.runs.reader import Run
from dare_bench.runs.schema import UNSAFE_ALLOWED
from dare_bench.types import Decoding, Request

log = logging.getLogger("dare_bench")


def evaluate(
    spec: RunSpec | None = None,
    *,
    model: str | Path | Model | LoadedModel | None = None,
    progress: bool = True,
    **fields: Unpack[RunKeywords],
) -> Run:
    """Evaluate a checkpoint on tasks and return its run.

    Args:
        spec: what to do; or give its fields by name: ``evaluate(model="tiny-llada", tasks="dare_sudoku", limit=50)``.
        model: a checkpoint (folder, hub id, bundled name), or a model that is open already.
        progress: show progress on stderr.
        fields: fields of :class:`~dare_bench.config.RunSpec`; on top of ``spec`` if both are given.

    Raises:
        UsageError: unknown tasks or fields, decoding values that cannot be.
        CheckpointError, DataError, RunError, MemoryLimitError, SaveError: what the message says. What was answered
            until then is kept, and the same call goes on from there.
    """
    spec, opened = resolve_spec(spec, model, fields)
    return _evaluate_spec(spec, Opener(opened), progress)


@dataclass(frozen=True)
class Outcome:
    """What became of one of several runs: the run, or the one-line reason why there is none."""

    planned: PlannedRun
    run: Run | None
    reason: str | None = None


def evaluate_all(planned: Sequence[PlannedRun], *, progress: bool = True) -> Iterator[Outcome]:
    """Make several runs, one after another, with each checkpoint opened once.

    Where settings or data of a run are refused before anything is computed (a gated data set, a missing file), its
    outcome says why, and the others go on.

    Raises:
        CheckpointError, RunError, MemoryLimitError, SaveError: what concerns all of them ends all of them.
    """
    opener = Opener()
    for run in planned:
        try:
            yield Outcome(run, _evaluate_spec(resolve_spec(None, None, run.fields)[0], opener, progress))
        except (UsageError, DataError) as error:
            yield Outcome(run, None, str(error))


def _evaluate_spec(spec: RunSpec, opener: Opener, progress: bool) -> Run:
    source_class = registry().get("harness", spec.harness).load()
    check(source_class, spec)
    scope = Scope.of(spec.limit, spec.samples)
    content = opener.content(spec)
    if not spec.fresh and (run := find_finished(spec, content, scope)) is not None:
        return run
    model, path = opener.loaded(spec), opener.path(spec)
    return _Evaluation(spec, model, path, content, source_class, progress).run(scope)


def find_finished(spec: RunSpec, content: str, scope: Scope) -> Run | None:
    """The finished run that answers this command, looked up without opening the model; None if there is none."""
    prefix = fingerprint.readable_prefix(spec.model, spec.harness, sorted(set(spec.tasks)), spec.adapter)
    signature = ident.request_signature(spec, content)
    for folder in latest_with_prefix(Path(spec.output_path), prefix):
        done = read_done(folder)
        if done is None or done.status != "complete" or done.asked != signature:
            continue
        if done.scope == scope:
            log.info("the run is finished; nothing to do (dare-bench eval --fresh makes a new run beside it)")
        elif done.scope.covers(scope, done.totals):
            log.warning("the run holds more than requested: %s; --fresh starts a new run", done.scope.text())
        else:
            continue
        run = Run(folder)
        for text in answering.warnings(run.block.programs) if run.block is not None else ():
            log.warning("%s", text)
        return run
    return None


def resolve_spec(spec: RunSpec | None, model: Any, fields: Mapping[str, Any]) -> tuple[RunSpec, Any]:
    """The whole spec, and the open model if one was given."""
    given = dict(fields)
    check_names(given)
    opened: Any = None
    if isinstance(model, (str, Path)):
        given["model"] = str(model)
    elif model is not None:
        opened = model
        named = (getattr(model, name, None) for name in ("checkpoint", "path", "name"))
        name = next(filter(None, named), type(model).__name__)
        given.setdefault("model", spec.model if spec is not None else str(name))
    if spec is not None:
        given = {**spec.model_dump(), **given}
    if spec is None and "tasks" not in given and given.get("recipe") is not None:
        given = _single(given)
    if "model" not in given:
        raise UsageError("no model named; give --model: a folder, a hub id or a bundled name (dare-bench ls models)")
    if isinstance(tasks := given.get("tasks"), str) and suites.find(tasks) is not None:
        raise UsageError(
            f"{tasks!r} is a suite of many runs; in Python: for outcome in evaluate_all(plan({{'model': ..., "
            f"'tasks': {tasks!r}}})), see docs/python.md; or dare-bench eval --tasks {tasks}"
        )
    if "tasks" not in given:
        raise UsageError(
            "no task given; use --tasks name,name, in Python tasks='name,name' (dare-bench ls tasks lists them)"
        )
    whole = run_spec(**given)
    if whole.data_dir is None and (found := os.environ.get("DARE_BENCH_DATA")):
        whole = whole.model_copy(update={"data_dir": found})
    Scope.of(whole.limit, whole.samples)
    sharded(whole, opened)
    return split_adapter(whole, opened), opened


def _single(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of the one run that a recipe stands for."""
    planned = plan(given)
    if len(planned) != 1:
        count = len(planned)
        raise UsageError(f"recipe {given['recipe']!r} stands for {count} runs; name one of them: checkpoint/entry")
    return planned[0].fields


def preparer(model: LoadedModel, spec: RunSpec) -> Any:
    """Adds to each generate request what an evaluation wants: recordings, and the stop at EOS exactly when the text is
    cut there anyway (what the user or task says wins). None of it changes a score. A decoding is resolved once, and its
    requests carry it."""
    record = {"margin": True, "trajectory": spec.log_samples and model.capabilities.trajectory}
    known: dict[str, tuple[dict[str, Any], Decoding]] = {}

    def decoding(fields: Mapping[str, Any]) -> tuple[dict[str, Any], Decoding]:
        """The fields of a prepared request, and what they mean."""
        wanted = {**record, **fields}
        if wanted.get("early_stop") is None:
            wanted["early_stop"] = model.resolve(fields).text_after_eos == "cut"
        return wanted, model.resolve(wanted)

    def prepare(request: Request) -> Request:
        if request.kind != "generate":
            return request
        mark = fingerprint.digest(request.decoding, 32)
        if mark not in known:
            known[mark] = decoding(request.decoding)
        fields, resolved = known[mark]
        return replace(request, decoding=fields, resolved=resolved)

    return prepare


@dataclass
class _Evaluation:
    """One evaluation with its model open."""

    spec: RunSpec
    model: LoadedModel
    path: Path | None
    content: str
    source_class: Any
    progress: bool

    def run(self, scope: Scope) -> Run:
        spec = self.spec
        source = self.source_class(spec, self.model)
        requests: Sequence[Request] = source.requests()
        if (count := len({request.task for request in requests})) > MAX_TASKS:
            raise UsageError(f"{count:,} tasks are asked for; a run has at most {MAX_TASKS:,}: give them to several")
        prepare = preparer(self.model, spec)
        settings = ident.settings_by_task(self.model, [prepare(request) for request in requests])
        prefix = fingerprint.readable_prefix(spec.model, spec.harness, sorted(set(spec.tasks)), spec.adapter)
        run_id = fingerprint.run_id(prefix, ident.identity(spec, self.model, self.content, *settings))
        folder = choose(Path(spec.output_path), run_id, spec.fresh)
        with RunFolder(folder) as place:
            about = {**place.begin(self._about()), "decoding": settings[0], "likelihood": settings[1]}
            done = read_done(folder)
            if done is not None and (whole := joined(done.scope, scope, done.totals)) != scope:
                log.warning("the run holds more than requested: %s; --fresh starts a new run", whole.text())
                scope, spec = whole, spec.model_copy(update=whole.plain())
                source = self.source_class(spec, self.model)
                requests = source.requests()
            place.reopen()
            log.info("run %s", folder)
            with Journal(place.journal) as journal:
                queue = self._queue(journal, prepare, requests, scope, done, getattr(source, "watch", None))
                try:
                    harness = source.run(queue.answer)
                finally:
                    queue.watcher.close()
                piece = _piece(self.model.tokenizer)
                block = results.write(folder, results.Written(spec, about, requests, journal, harness, piece))
            totals = {task: entry.n_total for task, entry in block.tasks.items()}
            place.commit(CommitMarker(block.status, ident.request_signature(self.spec, self.content), scope, totals))
        return Run(folder)

    def _warn(self, journal: Journal, requests: Sequence[Request]) -> None:
        """Say where another program than this one answered what is there."""
        now = answering.parts(self.model)
        if sharded(self.spec):  # the workers count their threads themselves
            now.pop("threads", None)
        for one in answering.answered(journal, [request.key for request in requests]):
            known = {name: value for name, value in one.parts.items() if name in now}
            if found := program.differences(known, now):
                log.warning("another program made %d of the answers (%s); --fresh makes all anew", one.requests, found)

    def _queue(
        self,
        journal: Journal,
        prepare: Any,
        requests: Sequence[Request],
        scope: Scope,
        done: CommitMarker | None,
        watch: Any,
    ) -> Queue:
        """The queue of this session; notes in the journal that it began, if there is anything to compute."""
        sessions = journal.records("session")
        held = sum(request.key in journal for request in requests)
        for damage in journal.damage:
            log.warning("journal %s, line %d cannot be read; its sample is computed again", damage.file, damage.line)
        if held:
            self._warn(journal, requests)
        if self.spec.unsafe_no_sandbox:
            now = datetime.now().astimezone().isoformat()
            journal.append({"type": "event", "what": UNSAFE_ALLOWED, "session": len(sessions), "date": now})
        if held < len(requests):
            if held:
                log.info("resuming: %d of %d requests are answered already", held, len(requests))
            now = datetime.now().astimezone().isoformat()
            start = {"type": "session", "session": len(sessions), "date": now, "held": held, "command": command()}
            journal.append({**start, "scope": scope.plain()})
            for damage in journal.damage:
                what = {"what": "a journal line could not be read", "file": damage.file, "line": damage.line}
                journal.append({"type": "event", **what})
            if done is not None and done.scope != scope:
                change = {"from": done.scope.text(), "to": scope.text(), "date": now}
                journal.append({"type": "event", "what": "the run was extended", **change})
        return Queue(
            self.model,
            journal,
            prepare=prepare,
            max_rows=self.spec.max_rows,
            watcher=watcher(self.progress),
            watch=watch,
            session=len(sessions),
            remote=Shards(self.spec, self.content, self.model, journal, len(sessions)) if sharded(self.spec) else None,
        )

    def _about(self) -> dict[str, Any]:
        """What ``run.json`` says besides its date and id."""
        spec, facts = self.spec, self.model.spec
        return {
            "spec": spec.model_dump(mode="json"),
            "model": {
                "name": fingerprint.shown_name(spec.model, spec.adapter),
                "path": str(self.path) if self.path is not None else None,
                "family": facts.family,
                "content_hash": self.content,
                "adapter": spec.adapter,
                "adapter_hash": ident.adapter_content(spec, self.content),
                "dtype": facts.dtype,
                "parameters": facts.parameters,
                "lineage": lineage.read(locate(spec.adapter) if spec.adapter else self.path),
            },
            "device": facts.device,
            "command": command(),
            "moment": datetime.now().timestamp(),
        }


def _piece(tokenizer: Any) -> results.Piece:
    """The text of a token, remembered; its number where no tokenizer can tell."""
    known: dict[int, str] = {}

    def piece(token: int) -> str:
        if token not in known:
            decode = getattr(tokenizer, "decode", None)
            known[token] = str(decode([token])) if decode is not None else f"<{token}>"
        return known[token]

    return piece
