"""One process's work on a run, with the model open: find the folder, answer what is missing, score, write, commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from dare_bench import fingerprint, program
from dare_bench.config import RunSpec
from dare_bench.engine import identity as ident
from dare_bench.engine import known_failures, result_files
from dare_bench.engine.codec import piece_of
from dare_bench.engine.environment import command, program_parts, programs_of
from dare_bench.engine.journal import Journal
from dare_bench.engine.progress import progress_display
from dare_bench.engine.queue import Prepare, Queue
from dare_bench.engine.rundir import CommitMarker, RunFolder, choose, part_folder, read_done
from dare_bench.engine.sharding import remote_workers, uses_workers
from dare_bench.engine.stopping import StoppingRun, refuse_unstoppable
from dare_bench.errors import UsageError
from dare_bench.harness.common.scope import Scope
from dare_bench.loading import locate
from dare_bench.log import log
from dare_bench.protocols import LoadedModel, TaskSource
from dare_bench.runs import lineage
from dare_bench.runs.field_types import MAX_TASKS
from dare_bench.runs.reader import Run
from dare_bench.runs.run_files import JOURNAL
from dare_bench.runs.schema import UNSAFE_ALLOWED
from dare_bench.runs.writer import ensure_folder
from dare_bench.seen_lengths import unseen_length
from dare_bench.types import Decoding, Request


def request_preparer(model: LoadedModel, spec: RunSpec) -> Prepare:
    """Adds to each generate request what an evaluation needs and no score depends on: recordings, and the stop at EOS
    if the text is cut there (a value of the user or task wins). Each distinct decoding is resolved once."""
    can = model.capabilities
    record = {"near_tie": can.near_tie, "trajectory": spec.log_samples and can.trajectory}
    prepared: dict[str, tuple[dict[str, Any], Decoding]] = {}

    def prepare(request: Request) -> Request:
        if request.kind != "generate":
            return request
        digest = fingerprint.digest(request.decoding, 32)
        if digest not in prepared:
            fields = {**record, **request.decoding}
            if fields.get("early_stop") is None:
                fields["early_stop"] = model.resolve(request.decoding).text_after_eos == "cut"
            prepared[digest] = fields, model.resolve(fields)
        decoding, resolved = prepared[digest]
        return replace(request, decoding=decoding, resolved=resolved)

    return prepare


@dataclass
class Session:
    """The work of this process on a run, with the model open."""

    spec: RunSpec
    model: LoadedModel
    path: Path | None
    content: str
    source_class: type[TaskSource]
    progress: bool

    def run(self, scope: Scope) -> Run:
        spec = self.spec
        source = self.source_class(spec, self.model)
        requests: Sequence[Request] = source.requests()
        if (count := len({request.task for request in requests})) > MAX_TASKS:
            raise UsageError(f"{count:,} tasks requested; a run has at most {MAX_TASKS:,}: use several runs")
        if spec.until_halfwidth is not None:
            refuse_unstoppable(source, requests)
        prepare = request_preparer(self.model, spec)
        prepared = [prepare(request) for request in requests]
        settings = ident.settings_by_task(self.model, prepared)
        run_id = ident.run_id(spec, ident.identity(spec, self.model, self.content, *settings))
        whole, folder = self._folders(choose(Path(spec.output_path), run_id, spec.fresh), scope)
        with RunFolder(folder) as run_folder:
            about = {**run_folder.begin(self._about(whole)), "decoding": settings[0], "likelihood": settings[1]}
            done, stopping = read_done(folder), None
            if spec.until_halfwidth is not None:
                stopping = StoppingRun(spec, requests, done.scope if done else None)
                scope, spec = done.scope if done else scope, spec.model_copy(update={"limit": None})
            run_folder.reopen()
            log.info("run %s", folder)
            self._warn_about_settings(prepared, *settings)
            with Journal(run_folder.journal) as journal:
                if whole is not None:
                    self._copy_answers(whole, journal, requests)
                session = self._begin_session(journal, requests, scope, done)
                remote = None
                if uses_workers(spec):
                    remote = remote_workers(spec, self.content, self.model, journal, session)
                queue = Queue(
                    self.model,
                    journal,
                    prepare=prepare,
                    max_rows=spec.max_rows,
                    progress=progress_display(self.progress),
                    on_sample=source.watch,
                    session=session,
                    remote=remote,
                )
                with closing(queue.progress):
                    if stopping is None:
                        harness = source.run(queue.answer)
                    else:
                        harness = stopping.run(source, queue.answer, journal)
                        requests, scope = source.requests(), stopping.scope
                chat = bool(spec.apply_chat_template)
                harness.notes.extend(known_failures.after(self.model, chat, prepared, journal, harness))
                piece = piece_of(self.model.tokenizer)
                block = result_files.write(
                    folder, result_files.RunRecord(spec, about, requests, journal, harness, piece)
                )
            totals = {task: entry.n_total for task, entry in block.tasks.items()}
            signature = ident.request_signature(self.spec, self.content)
            run_folder.commit(CommitMarker(block.status, signature, scope, totals))
        return Run(folder)

    def _folders(self, folder: Path, scope: Scope) -> tuple[Path | None, Path]:
        """The finished run that has more documents than ``scope``, if ``folder`` is one, and the folder to work in.
        Raises UsageError: the run has other documents, and not all that are requested."""
        done = read_done(folder)
        if done is None or self.spec.until_halfwidth is not None or scope.covers(done.scope, done.totals):
            return None, folder
        if not done.scope.covers(scope, done.totals):
            raise UsageError(
                f"this run covers {done.scope.text()}, which neither contains nor is contained in {scope.text()}; "
                "add --fresh for a new run"
            )
        log.info("%s has %s; those requested are scored from its answers", folder, done.scope.text())
        return folder, ensure_folder(part_folder(folder, scope))

    def _copy_answers(self, whole: Path, journal: Journal, requests: Sequence[Request]) -> None:
        """Give a run of some of the documents of ``whole`` its answers to them; raises RunError if another process
        writes that run."""
        if all(request.key in journal for request in requests) or not (whole / JOURNAL).is_dir():
            return
        with RunFolder(whole) as place, Journal(place.journal) as answered:
            for program_record in answered.records("program"):
                journal.append(program_record)
            for request in requests:
                if request.key in answered and request.key not in journal:
                    journal.append(answered.sample(request.key))
        what = f"a part of the documents of {whole.name} was scored from its recorded answers"
        date = datetime.now().astimezone().isoformat()
        journal.append({"type": "event", "what": what, "date": date, "from": whole.name, "command": command()})

    @property
    def _trained(self) -> Path | None:
        """The folder of the checkpoint's last training."""
        return locate(self.spec.adapter) if self.spec.adapter else self.path

    def _warn_about_settings(
        self, requests: Sequence[Request], decoding: Mapping[str, Mapping[str, Any]], likelihood: Mapping[str, Any]
    ) -> None:
        """Log settings without effect or known to fail, and canvases that the checkpoint's training has not seen."""
        for given, used, what in (
            (self.spec.decoding, decoding, "generates an answer"),
            (self.spec.likelihood, likelihood, "computes log-likelihoods"),
        ):
            if given and not used:
                text = ", ".join(f"{name}={value}" for name, value in given.items())
                log.warning("%s: without effect, since no task of this run %s", text, what)
        tasks: dict[str, dict[str, None]] = {}
        for task, fields in decoding.items():
            if warning := unseen_length(self._trained, fields.get("gen_length")):
                tasks.setdefault(warning, {})[task] = None
        for request in requests:
            if request.resolved is not None and (remark := request.resolved.remark):
                tasks.setdefault(remark, {})[request.task] = None
        for warning, task in known_failures.before(self.model.spec, self.spec.decoding, decoding, likelihood):
            tasks.setdefault(warning, {})[task] = None
        for warning, names in tasks.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            log.warning("%s%s: %s", ", ".join(list(names)[:3]), more, warning)

    def _warn_about_other_programs(self, journal: Journal, requests: Sequence[Request]) -> None:
        """Log if another program answered requests of this run."""
        now = program_parts(self.model)
        if uses_workers(self.spec):  # workers have another number of threads
            now.pop("threads", None)
        for earlier in programs_of(journal, [request.key for request in requests]):
            comparable = {name: value for name, value in earlier.parts.items() if name in now}
            if text := program.differences(comparable, now):
                log.warning(
                    "%d answers came from a different program version (%s); --fresh starts over", earlier.requests, text
                )

    def _begin_session(
        self, journal: Journal, requests: Sequence[Request], scope: Scope, done: CommitMarker | None
    ) -> int:
        """Record in the journal that a session begins, if there is anything to compute; returns its number."""
        session = len(journal.records("session"))
        date = datetime.now().astimezone().isoformat()
        answered = sum(request.key in journal for request in requests)
        for damage in journal.damage:
            log.warning("journal %s, line %d cannot be read; its sample is computed again", damage.file, damage.line)
        if answered:
            self._warn_about_other_programs(journal, requests)
        if self.spec.unsafe_no_sandbox:
            journal.append({"type": "event", "what": UNSAFE_ALLOWED, "session": session, "date": date})
        if answered == len(requests):
            return session
        if self.model.spec.compiled:
            then = "; on a CPU this rarely pays" if self.model.spec.device == "cpu" else ", and later steps are faster"
            log.info("steps are compiled: each shape takes seconds to a minute when it first occurs%s", then)
        if answered:
            log.info("resuming: %d of %d requests are answered already", answered, len(requests))
        start = {"type": "session", "session": session, "date": date, "held": answered, "command": command()}
        journal.append({**start, "scope": scope.plain()})
        for damage in journal.damage:
            event = {"what": "a journal line could not be read", "file": damage.file, "line": damage.line}
            journal.append({"type": "event", **event})
        if done is not None and done.scope != scope:
            change = {"from": done.scope.text(), "to": scope.text(), "date": date}
            journal.append({"type": "event", "what": "the run was extended", **change})
        return session

    def _about(self, whole: Path | None) -> dict[str, Any]:
        """The contents of ``run.json`` besides date and id. ``whole``: the run of whose documents it has some."""
        spec, facts, engine = self.spec, self.model.spec, None
        if facts.engine != "native":
            stated = self.content.startswith("stated:")
            engine = {"name": facts.engine, "version": facts.engine_version, "content_verified": not stated}
        return {
            "spec": spec.model_dump(mode="json"),
            "model": {
                "name": fingerprint.shown_name(spec.model, spec.adapter),
                "path": str(self.path) if self.path is not None else None,
                "family": facts.family,
                "content_hash": self.content,
                "adapter": spec.adapter,
                "adapter_hash": ident.adapter_content(spec, self.content),
                "dtype": facts.precision,
                "parameters": facts.parameters,
                "engine": engine,
                "lineage": lineage.read(self._trained),
            },
            "device": facts.device,
            "from": None if whole is None else whole.name,
            "command": command(),
            "moment": datetime.now().timestamp(),
        }
