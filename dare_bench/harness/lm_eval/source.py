"""lm-eval's tasks as a task source: lm-eval builds the prompts of all tasks at once and scores the answers, in a
sandboxed process, once for each of ``--repeats``. Documents without an answer are left out, so a failed request is
never scored as a wrong answer. Tests of generated code start while other answers are still being generated."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dare_bench.config import RunSpec
from dare_bench.errors import unknown
from dare_bench.harness.common.answering import Failures, answered, failure_rows, harness_errors
from dare_bench.harness.common.by_name import by_name
from dare_bench.harness.common.code_eval import CodeRunner, code_eval_replaced
from dare_bench.harness.common.extraction_status import tally
from dare_bench.harness.common.hashing import documents_hash
from dare_bench.harness.common.local_data import LocalData
from dare_bench.harness.common.repeats import RepeatResult, combine, equal_repeats
from dare_bench.harness.common.requests import RequestBuilder, place, refuse_likelihoods
from dare_bench.harness.common.scoring_process import check_scoring, score, unprotected
from dare_bench.harness.lm_eval.code_scoring import CodeScoring, code_mark
from dare_bench.harness.lm_eval.code_tasks import check_punkt, evaluating_tasks, refuse_unknown_code, sandboxed_tasks
from dare_bench.harness.lm_eval.documents import TaskDocuments, refuse_unbounded, without_tasks
from dare_bench.harness.lm_eval.extraction import annotate, unread
from dare_bench.harness.lm_eval.redrawn import mark_redrawn
from dare_bench.harness.lm_eval.scoring_limits import is_mathematical, limited
from dare_bench.harness.lm_eval.task_index import TaskIndex
from dare_bench.protocols import Answer, HarnessResult, LoadedModel, TaskSource
from dare_bench.types import Request, Sample

if TYPE_CHECKING:
    from dare_bench.harness.lm_eval.lm import AnsweringLM
import functools
import logging
from collections.abc import Iterator

from dare_bench.harness.common.quiet import is_verbose, replaced, silenced

BOOTSTRAP = 1000
"""Draws for the standard errors that lm-eval bootstraps (those of means are in closed form). lm-eval's 100,000 take
minutes for a corpus metric and change the third digit of the error."""
SEED_NAMES = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")
ScoredDocuments = Mapping[str, list[int] | None]
"""By task, the numbers of the documents to score; None for all that were built."""

# These only repeat the user's settings, or what we note ourselves.
_IGNORED = (
    "generation_kwargs:",
    "Overwriting default num_fewshot",
    "num_fewshot has been set to 0",
    "No `generation_kwargs` specified",
    "is defined, but ",
    "Custom kwargs can be passed",
)


class LmEvalSource(TaskSource):
    """The tasks of a run, from lm-eval; raises UsageError or DataError."""

    @staticmethod
    def check(spec: RunSpec) -> None:
        """Refuse invalid settings before a model is opened; raises UnknownNameError, CodeTaskError, UsageError or
        DataError."""
        index = TaskIndex(spec.include_path)
        leaves = index.leaves(index.match(spec.tasks))
        refuse_likelihoods(spec.engine, index.likelihood_tasks(leaves))
        CodeRunner.check(spec, sandboxed_tasks(leaves))
        check_scoring(spec, evaluating_tasks(leaves))
        check_punkt(leaves)
        LocalData.find(spec.data_dir)

    @staticmethod
    def knows(task: str, spec: RunSpec) -> bool:
        """Is that one of lm-eval's names, or of the added folders?"""
        return task in TaskIndex(spec.include_path if spec.harness == "lm-eval" else ()).entries

    @staticmethod
    def paths(spec: RunSpec) -> list[str]:
        """The words of ``tasks`` that are not names, but files or folders from which tasks are loaded."""
        index = TaskIndex(spec.include_path)
        return [word for word in spec.tasks if index.is_path(word)]

    def __init__(self, spec: RunSpec, model: LoadedModel) -> None:
        self.check(spec)
        chosen = None
        if spec.until_halfwidth is not None:  # prompts are those among all documents
            chosen, spec = spec.samples, spec.model_copy(update={"limit": None, "samples": None})
        super().__init__(spec, model)
        self._index = TaskIndex(spec.include_path)
        self._names = self._index.match(spec.tasks)
        leaves = self._index.leaves(self._names)
        if not model.capabilities.rolling:
            self._index.refuse_rolling(leaves)
        self.notes = [self._index.replaced[entry.name] for entry in leaves if entry.name in self._index.replaced]
        self._builder = RequestBuilder(model, spec.decoding, spec.likelihood, spec.sampling_seed)
        self._data = LocalData.find(spec.data_dir)
        self._code_tasks = sandboxed_tasks(leaves)
        self._runner = CodeRunner(spec)
        self._code = CodeScoring(self._runner, {})
        self._tasks: Any = None
        self._documents: dict[str, TaskDocuments] = {}
        self._built: list[Request] = []
        self._requests: list[Request] | None = None
        if chosen is not None:
            self.narrow(chosen)

    def requests(self) -> list[Request]:
        """All requests of all tasks, without answering any; raises DataError, UsageError or DecodingError."""
        if self._requests is None:
            self._collect()
            self._requests = self._built = [
                self._builder.build(instance, doc_id=doc_id, want_greedy=documents.wants_greedy)
                for documents in self._documents.values()
                for doc_id, instance in documents.instances()
            ]
            if self.spec.repeats > 1:
                self.notes += equal_repeats(self.model, self._requests)
        return self._requests

    def narrow(self, documents: Mapping[str, Sequence[int]]) -> None:
        """See :meth:`TaskSource.narrow`; raises UsageError for groups, and for scores that are not means."""
        self.requests()
        refuse_unbounded(self._tasks.load(self._names))
        for name, numbers in documents.items():
            self._documents[name].narrow(numbers)
        self._requests = [r for r in self._built if self._documents[r.task].is_requested(int(r.doc_id))]

    def metrics(self) -> dict[str, bool | None] | None:
        """The scores of tasks by the filters that each has, and whether greater ones are better; None if a group has
        other scores."""
        loaded = self._tasks.load(self._names)
        if loaded.get("groups"):
            return None
        return {
            f"{name}/{metric}" + ("" if pipeline.name == "none" else f",{pipeline.name}"): better.get(metric)
            for name, task in loaded["tasks"].items()
            for better in [task.higher_is_better()]
            for metric in task.aggregation()
            for pipeline in getattr(task, "_filters", ())
        }

    def watch(self, sample: Sample) -> None:
        """Start the tests of generated code for a finished sample. Never waits and never raises."""
        self._code.watch(sample)

    def run(self, answer: Answer) -> HarnessResult:
        """Get all requests answered by one call of ``answer``, and score them."""
        try:
            requests = self.requests()
            pairs, failures = answered(requests, answer, self.watch, self._code.refusal)
            samples = {request.key: sample for request, sample in pairs}
            folders = [*self.spec.include_path, self.spec.data_dir]
            formulas = [name for name, task in self._tasks.load(self._names)["tasks"].items() if is_mathematical(task)]
            return score(lambda: self._scored(samples, failures), requests, folders, formulas=formulas)
        finally:
            self._code.close()
            self._runner.close()

    def _scored(self, samples: Mapping[str, Sample], failures: Failures) -> HarnessResult:
        """The result of all samples, by key of their requests: one scoring pass for each repeat. Runs lm-eval's code on
        answers, so only in the scoring process."""
        from dare_bench.harness.lm_eval.lm import AnsweringLM

        self._runner.look_up_only()
        scored = {task: documents.to_score(failures) for task, documents in self._documents.items()}
        by_place = {place(request): samples[request.key] for request in self.requests()}
        parts = [self._score(scored, by_place, 0)]
        repeated = {task: documents if self._documents[task].repeated else [] for task, documents in scored.items()}
        if any(documents != [] for documents in repeated.values()):
            parts += [self._score(repeated, by_place, part) for part in range(1, self.spec.repeats)]
        groups = without_tasks(self._tasks.load(self._names), _unscored(scored)).get("groups", {})
        results, rows = combine(parts, lambda table: {name: g.aggregate(table) for name, g in groups.items()})
        results = _plain_json(results)
        results["chat_template"] = AnsweringLM(self.model).chat_template(self.spec.apply_chat_template)
        with quiet(self.notes):
            fingerprints = {  # over all requested documents: one without an answer does not make it another task
                task: f"{self._tasks.definitions[task]}:{documents_hash(documents.rows())}"
                for task, documents in self._documents.items()
            }
        notes = [*self.notes, *self._builder.notes, *self._code.notes, *(self._data.notes if self._data else [])]
        notes += unprotected()
        notes += [f"task {t!r} has no score: none of its documents was answered" for t, d in scored.items() if d == []]
        notes += unread(self._tasks.load(self._names)["tasks"], rows)
        return HarnessResult(
            results=results,
            samples=rows,
            fingerprints=fingerprints,
            notes=list(dict.fromkeys(notes)),
            failures=failure_rows(failures),
            extraction=tally(rows),
            execution=self._runner.execution(rows, self._code_tasks),
            data={name: text for name, documents in self._documents.items() if (text := documents.origin)},
        )

    def _collect(self) -> None:
        from dare_bench.harness.lm_eval.lm import AnsweringLM, build_requests
        from dare_bench.harness.lm_eval.task_manager import LocalTaskManager

        with quiet(self.notes), by_name():
            entries = self._index.reached(self._names)
            self._tasks = LocalTaskManager(entries, self._data, dict.fromkeys(self._code_tasks, code_mark))
            with code_eval_replaced(self._runner) if self._code_tasks else contextlib.nullcontext():
                loaded = self._tasks.load(self._names)["tasks"]
            refuse_unknown_code((n for n, t in loaded.items() if getattr(t, "UNSAFE_CODE", False)), self._code_tasks)
            samples, repeats = self.spec.samples or {}, self.spec.repeats
            for name in samples:
                if name not in loaded:
                    raise unknown("task", name, loaded, place="--samples")
            self._documents = {name: TaskDocuments(task, samples.get(name), repeats) for name, task in loaded.items()}
            self._code = CodeScoring(self._runner, {n: d for n, d in self._documents.items() if n in self._code_tasks})
            lm = AnsweringLM(self.model, template=self.spec.apply_chat_template)
            with harness_errors(f"lm-eval stopped at {', '.join(self._names)}"):
                build_requests(loaded, self.spec, lm, self._samples())
            self.notes += lm.notes

    def _samples(self) -> dict[str, Any] | None:
        """``--samples`` in lm-eval's form."""
        return {name: d.samples for name, d in self._documents.items() if d.samples is not None} or None

    def _score(self, documents: ScoredDocuments, samples: Mapping[Any, Sample], part: int) -> RepeatResult:
        """(results, rows by task) of one of the repeats, in plain JSON values."""
        from dare_bench.harness.lm_eval.lm import AnsweringLM, sample_lookup

        loaded = self._tasks.load(self._names)
        if all(numbers is None for numbers in documents.values()):
            limit, selected = self.spec.limit, self._samples()  # nothing is left out: the user's settings
        else:
            limit, selected = None, {task: self._documents[task].select(d) for task, d in documents.items() if d != []}
        try:
            self._tasks.show(without_tasks(loaded, _unscored(documents)))
            with quiet(self.notes), limited(loaded["tasks"], part=part) as scoring:
                lm = AnsweringLM(self.model, sample_lookup(samples, part), self.spec.apply_chat_template)
                results = _plain_json(self._lm_eval(lm, limit, selected))
        finally:
            self._tasks.show(loaded)
            for of_task in self._documents.values():
                of_task.select(None)
        rows = results.pop("samples", {})
        self._code.mark(rows, self.requests(), part)
        scoring.mark(rows)
        self.notes += scoring.notes

        def finish(*key: Any) -> str | None:
            return getattr(samples[key].answer, "finish_reason", None)

        annotate(loaded["tasks"], rows, finish, part)
        mark_redrawn(loaded["tasks"], rows, lambda task, doc, index: samples[task, doc, index, part])
        return results, rows

    def _lm_eval(self, lm: AnsweringLM, limit: int | float | None, samples: Mapping[str, Any] | None) -> dict[str, Any]:
        from lm_eval import simple_evaluate

        spec = self.spec
        with harness_errors(f"lm-eval stopped at {', '.join(self._names)}"), without_environment():
            return simple_evaluate(
                model=lm,
                tasks=list(self._names),
                num_fewshot=spec.num_fewshot,
                limit=limit,
                samples=samples,
                bootstrap_iters=BOOTSTRAP,
                log_samples=True,
                system_instruction=spec.system_instruction,
                apply_chat_template=spec.apply_chat_template,
                fewshot_as_multiturn=spec.fewshot_as_multiturn,
                gen_kwargs=dict(spec.decoding) or None,
                task_manager=self._tasks,
                confirm_run_unsafe_code=bool(self._code_tasks),
                **dict(zip(SEED_NAMES, spec.seeds, strict=True)),
            )


def _unscored(documents: ScoredDocuments) -> list[str]:
    """The tasks of which no document is scored."""
    return [task for task, numbers in documents.items() if numbers == []]


def _plain_json(value: Any) -> Any:
    """As in lm-eval's files, without addresses of functions, which would make equal runs differ."""
    from lm_eval.utils import handle_non_serializable

    text = json.dumps(value, default=handle_non_serializable, ensure_ascii=False)
    return json.loads(_ADDRESS.sub("", text))


@contextlib.contextmanager
def without_environment() -> Iterator[None]:
    """Inside, lm-eval does not describe the machine and the folder, for which it starts a dozen programs in the current
    folder (``python -m pip``, ``git``); our results have another description."""
    from lm_eval import evaluator

    def leave_out(results: dict[str, Any]) -> None:
        del results["git_hash"]

    with replaced(evaluator, get_git_commit_hash=lambda: None, add_env_info=leave_out):
        yield


@contextlib.contextmanager
def quiet(notes: list[str]) -> Iterator[None]:
    """Inside, lm-eval's warnings go to ``notes`` (each once, the first dozen), and it draws no progress bars."""
    import lm_eval.api.task as task_module

    bars = functools.partial(task_module.tqdm, disable=not is_verbose())
    with silenced(logging.getLogger("lm_eval"), "lm-eval", notes, _IGNORED), replaced(task_module, tqdm=bars):
        yield
