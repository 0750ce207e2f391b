"""OpenCompass's data sets as a task source: OpenCompass builds the prompts and scores the answers.

Every data set of every config of a run is built once, all their requests go into one queue, and each data set is scored
by its evaluator, in a sandboxed process. OpenCompass itself is imported when the configs are read.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
import io
import json
import logging
import random
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from dare_bench.config import RunSpec
from dare_bench.errors import unknown
from dare_bench.harness.common.answering import Failures, answered, failure_rows
from dare_bench.harness.common.code_eval import CodeRunner
from dare_bench.harness.common.extraction_status import tally
from dare_bench.harness.common.hashing import described, documents_hash, file_hash, short_hash
from dare_bench.harness.common.repeats import equal_repeats
from dare_bench.harness.common.requests import RequestBuilder
from dare_bench.harness.common.scoring_process import check_scoring, score, unprotected, worker
from dare_bench.harness.opencompass.catalog import ConfigCatalog, quiet
from dare_bench.harness.opencompass.components import resolve
from dare_bench.harness.opencompass.dataset import DataSet, DataSetQuestion
from dare_bench.harness.opencompass.layout import lay_out
from dare_bench.harness.opencompass.programs import PROGRAMS_VERSION, runs_code
from dare_bench.harness.opencompass.result_tables import AnsweredDocuments, ResultTables, prompt_text
from dare_bench.harness.opencompass.scorer import Scorer
from dare_bench.harness.opencompass.selection import check_data, check_flags, configs_of, evaluating, groups_of
from dare_bench.protocols import Answer, HarnessResult, LoadedModel, TaskSource
from dare_bench.types import Generation, Request, Sample

log = logging.getLogger(__name__)

# Data sources, mere names and counts, and the settings of OpenCompass's models. The hash of the documents covers
# the data.
_LEFT_OUT = frozenset(
    {"path", "abbr", "n", "k", "num_repeats", "batch_size", "max_seq_len", "test_range", "local_mode", "type"}
)
# Only named: templates' texts and retrievers' numbers are in the configuration, and none of its inferencers runs here.
_NAMED = re.compile(r"^opencompass\.openicl\.icl_(prompt_template|raw_prompt_template|retriever|inferencer)\b")
_REGISTRIES = (
    *("ICL_PROMPT_TEMPLATES", "ICL_RETRIEVERS", "ICL_INFERENCERS", "ICL_EVALUATORS"),
    *("TEXT_POSTPROCESSORS", "LOAD_DATASET"),
)


class OpenCompassSource(TaskSource):
    """The data sets of a run, from OpenCompass; raises UsageError or DataError.

    Each data set is one task, named by its ``abbr``; a config with several of them is a group as well.
    """

    @staticmethod
    def check(spec: RunSpec) -> None:
        """Refuse invalid settings before a model is opened; raises UnknownNameError, UsageError or DataError."""
        check_flags(spec)
        layout = lay_out(spec.data_dir)
        configs = configs_of(spec)
        CodeRunner.check(spec, [name for name, (_, cfg) in configs.items() if runs_code(cfg)])
        check_scoring(spec, evaluating({name: cfg for name, (_, cfg) in configs.items()}))
        check_data(spec, configs, layout)

    @staticmethod
    def knows(task: str, spec: RunSpec) -> bool:
        """Is that the name of a config?"""
        return task.partition(":")[0] in ConfigCatalog().entries

    @staticmethod
    def paths(spec: RunSpec) -> list[str]:
        """The words of ``tasks`` that are not names, but config files."""
        catalog = ConfigCatalog(spec.include_path)
        return [word for word in spec.tasks if catalog.is_path(word)]

    def __init__(self, spec: RunSpec, model: LoadedModel) -> None:
        check_flags(spec)
        super().__init__(spec, model)
        self.version, self.notes = importlib.metadata.version("opencompass"), list[str]()
        self._configs = configs_of(spec)
        self._layout = lay_out(spec.data_dir)
        self._builder = RequestBuilder(model, spec.decoding, spec.likelihood, spec.sampling_seed)
        self._runner = CodeRunner(spec)
        self._scorers: dict[str, Scorer] = {}
        self._reader = worker({"read": lambda name, text: self._scorers[name].read_program(text)})
        self._requests: list[Request] | None = None

    def requests(self) -> list[Request]:
        """All requests of all data sets, without answering any; raises DataError, UsageError or DecodingError."""
        if self._requests is None:
            with self._quiet():
                self._build()
            self._requests = [
                self._builder.build(question, doc_id=document)
                for scorer in self._scorers.values()
                for document, questions in scorer.data.questions.items()
                for question in questions * scorer.data.repeats
            ]
            self.notes += equal_repeats(self.model, self._requests)
        return self._requests

    def _build(self) -> None:
        for name in self.spec.samples or {}:
            if name not in self._configs:
                raise unknown("task", name, self._configs, place="--samples")
        for name, (config, cfg) in self._configs.items():
            data = DataSet(config.name, cfg, self._layout, self.spec)
            read = partial(self._reader.call, "read", name)
            self._scorers[name] = Scorer(data, self._runner, self._layout.bench, read)
            _ = data.questions
            self.notes += data.notes

    def watch(self, sample: Sample) -> None:
        """Start the tests of generated code for a finished sample. Never waits and never raises."""
        scorer, answer = self._scorers.get(sample.request.task), sample.answer
        if scorer is None or not isinstance(answer, Generation):
            return
        try:
            scorer.watch(int(sample.request.doc_id), answer.text or "")
        except Exception as error:  # scoring meets it again, and reports it
            log.debug("tests of %s could not be started yet: %s", sample.request.key, error)

    def run(self, answer: Answer) -> HarnessResult:
        """Get all requests answered by one call of ``answer``, and score them."""
        requests = self.requests()
        pairs, failures = answered(requests, answer, self.watch, self._refusal)
        scored: dict[str, dict[int, AnsweredDocuments]] = {name: {} for name in self._scorers}
        for request, sample in pairs:
            if (request.task, request.doc_id) not in failures:
                repeats = scored[request.task].setdefault(request.repeat, {})
                repeats.setdefault(int(request.doc_id), []).append((request, sample))
        try:
            folders = [self.spec.data_dir, *self._layout.folders, *self.spec.include_path]
            formulas = [name for name, scorer in self._scorers.items() if scorer.evaluation.compares_formulas]
            return score(lambda: self._result(scored, failures), requests, folders, formulas=formulas)
        finally:
            self._reader.close()
            self._runner.close()

    def _refusal(self, request: Request, sample: Sample) -> str | None:
        if not isinstance(sample.answer, Generation):
            return None
        return self._scorers[request.task].refusal(int(request.doc_id), sample.answer.text or "")

    def _result(self, scored: Mapping[str, Mapping[int, AnsweredDocuments]], failures: Failures) -> HarnessResult:
        """Runs OpenCompass's code on answers, so only in the scoring process."""
        self._runner.look_up_only()
        with self._quiet():
            tables = ResultTables(self.version)
            for name, repeats in scored.items():
                tables.add(self._scorers[name], repeats)
            tables.add_groups(groups_of(self._configs))
            tables.results |= {"opencompass_version": self.version, "chat_template": self._template()}
            notes = [*self.notes, *self._layout.notes, *self._builder.notes, *tables.notes, *unprotected()]
            return HarnessResult(
                results=tables.results,
                samples=tables.samples,
                fingerprints={name: self._fingerprint(scorer) for name, scorer in self._scorers.items()},
                notes=list(dict.fromkeys(notes)),
                failures=failure_rows(failures),
                extraction=tally(tables.samples),
                execution=self._runner.execution(tables.samples, [n for n, s in self._scorers.items() if s.runs_code]),
                data=dict(self._layout.origins),
            )

    def _template(self) -> str | None:
        """The chat template's text, for the record; None for plain text."""
        if not self.spec.apply_chat_template:
            return None
        return str(self.model.tokenizer.get_chat_template()) if self.model.tokenizer is not None else None

    def _fingerprint(self, scorer: Scorer) -> str:
        """Over all requested documents: one without an answer does not make it another task."""
        rows = (
            (document, "\x1f".join(map(_text, questions)), scorer.proof(document))
            for document, questions in scorer.data.questions.items()
        )
        return f"{definition(scorer.data.cfg)}:{documents_hash(rows)}"

    @contextlib.contextmanager
    def _quiet(self) -> Iterator[None]:
        """Inside, OpenCompass's warnings become notes, its output is discarded, and loaders and retrievers draw random
        numbers from the run's seeds."""
        import numpy

        states = random.getstate(), numpy.random.get_state()
        random.seed(self.spec.seeds[0])
        numpy.random.seed(self.spec.seeds[1] % 2**32)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(quiet(self.notes))
                if not log.isEnabledFor(logging.DEBUG):
                    stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                    stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
                yield
        finally:
            random.setstate(states[0])
            numpy.random.set_state(states[1])


def _text(question: DataSetQuestion) -> str:
    """A question's text, for the fingerprint; an answer's settings are not part of the task."""
    args = question.args[:1] if question.request_type == "generate_until" else question.args
    return "\x1f".join(map(prompt_text, args))


def definition(cfg: Mapping[str, Any]) -> str:
    """Hash of a data set's definition: its configuration, and the source of every class and function it names; never
    the location of data."""
    settings = {name: value for name, value in cfg.items() if name not in _LEFT_OUT}
    parts = [_described(settings), _component(cfg.get("type"))]
    if runs_code(cfg):
        parts.append(PROGRAMS_VERSION)
    return short_hash(json.dumps(parts, sort_keys=True))


def _described(value: Any) -> Any:
    return described(value, _mapping, lambda value: _code(value) if callable(value) else None)


def _mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): _component(item) if key == "type" else _described(item) for key, item in value.items()}


def _component(value: Any) -> Any:
    """The value of a ``type``."""
    return (
        _code(resolve(value, *_REGISTRIES) or value) if isinstance(value, str) or callable(value) else _described(value)
    )


def _code(value: Any) -> Any:
    """A function or class by its name and the text of its file, which includes the helpers that it calls."""
    name = getattr(value, "__qualname__", str(value))
    module = str(getattr(value, "__module__", "") or "")
    if isinstance(value, str) or _NAMED.match(module):
        return f"{module}.{name}" if module else name
    try:
        source = inspect.getsourcefile(value)
    except TypeError:
        source = None
    return [name, file_hash(source)] if source else f"{module}.{name}"
