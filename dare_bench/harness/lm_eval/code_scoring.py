"""lm-eval's code tasks in a run: their tests run in the sandbox, and start as soon as an answer is finished. Which
pairs a scorer passes to ``code_eval`` is determined by calling it in a scoring process, with one answer at a time; the
scoring pass later requests the same pairs and gets the finished verdicts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dare_bench.harness.common.code_eval import (
    HEAVY_TIMEOUT,
    TIMEOUT,
    CodeRunner,
    TestedSolution,
    calls,
    setup_code,
    with_setup,
)
from dare_bench.harness.common.scoring_process import worker
from dare_bench.harness.lm_eval.documents import TaskDocuments
from dare_bench.types import Generation, Request, Sample

log = logging.getLogger(__name__)

# EvalPlus's release unpacks the number that find_zero returns instead of its argument.
_BROKEN, _FIXED = "_poly(*candidate(*inp), inp)", "_poly(*inp, candidate(*inp))"


class CodeScoring:
    """The code tasks of a run, their scorers wrapped; ``documents`` by task. ``notes`` list the differences from
    lm-eval's tests (see :func:`adapted`).
    """

    def __init__(self, runner: CodeRunner, documents: Mapping[str, TaskDocuments]) -> None:
        self._runner, self._documents = runner, documents
        self._scorers = {name: of_task.task.process_results for name, of_task in documents.items()}
        self._timeouts = {name: seconds(of_task.task) for name, of_task in documents.items()}
        self._pairs: dict[str, dict[str, list[TestedSolution]]] = {}
        self.notes: dict[str, None] = {}
        for name, of_task in documents.items():
            of_task.task.process_results = self._wrapped(name)
        self._worker = worker({"pairs": self._scored_pairs})

    def _wrapped(self, name: str) -> Any:
        scorer, timeout = self._scorers[name], self._timeouts[name]

        def process_results(doc: Any, results: Any) -> Any:
            with calls(self._runner, adapt=lambda tests: adapted(doc, tests)[0], timeout=timeout):
                return scorer(doc, results)

        return process_results

    def watch(self, sample: Sample) -> None:
        """Start the tests of a finished answer, if its task is one of these; never waits, never raises."""
        request = sample.request
        if request.task not in self._documents or request.key in self._pairs:
            return
        try:
            if isinstance(sample.answer, Generation):
                self._pairs[request.key] = self._start(request, sample.answer.text or "")
        except Exception as error:  # the scoring pass meets it again, and reports it
            log.debug("tests of %s could not be started yet: %s", request.key, error)

    def _start(self, request: Request, text: str) -> dict[str, list[TestedSolution]]:
        """The pairs by which the answer is scored, for each filter; their tests are started."""
        by_filter, changes = self._worker.call("pairs", request, text)
        self.notes |= {f"task {request.task!r}: {change}": None for change in changes}
        for solution, tests in (pair for pairs in by_filter.values() for pair in pairs):
            self._runner.prepare(solution, tests, self._timeouts[request.task])
        return {name: [(solution, tests) for solution, tests in pairs] for name, pairs in by_filter.items()}

    def _scored_pairs(self, request: Request, text: str) -> tuple[dict[str, list[TestedSolution]], list[str]]:
        """The pairs that filters and scorer make of an answer, and how its tests were adapted. Runs in the scoring
        process."""
        documents = self._documents[request.task]
        instance = documents.instance(request)
        instance.resps = [text]
        by_filter: dict[str, list[TestedSolution]] = {}
        all_changes: dict[str, None] = {}

        def adapt(tests: str) -> str:
            changed, changes = adapted(instance.doc, tests)
            all_changes.update(dict.fromkeys(changes))
            return changed

        for ensemble in getattr(documents.task, "_filters", ()):
            ensemble.apply([instance])
            filtered = instance.filtered_resps[ensemble.name]
            with calls(None, adapt=adapt) as pairs:
                self._scorers[request.task](instance.doc, [filtered])
            by_filter[ensemble.name] = pairs
        return by_filter, list(all_changes)

    def close(self) -> None:
        """End the scoring process."""
        self._worker.close()

    def refusal(self, request: Request, _: Sample) -> str | None:
        """The reason why the code of an answer could not be run, or None: such a document is left out, not scored as
        wrong. Waits."""
        pairs = (pair for of_filter in self._pairs.get(request.key, {}).values() for pair in of_filter)
        reasons = (self._runner.refusal(*pair, self._timeouts[request.task]) for pair in pairs)
        return next((reason for reason in reasons if reason is not None), None)

    def mark(self, samples: Mapping[str, Sequence[dict[str, Any]]], requests: Iterable[Request], part: int) -> None:
        """Write the verdicts of one repeat's answers into ``_answers`` of the rows of its documents."""
        by_document: dict[tuple[str, Any], list[Request]] = {}
        for request in requests:
            if request.task in self._documents:
                by_document.setdefault((request.task, request.doc_id), []).append(request)
        for task in samples.keys() & self._documents.keys():
            for row in samples[task]:
                of_part = self._documents[task].of_part(by_document[task, row["doc_id"]], part)
                answers = row.setdefault("_answers", [{} for _ in of_part])
                for answer, request in zip(answers, of_part, strict=True):
                    answer |= self._verdict(task, self._pairs.get(request.key, {}).get(row["filter"], ()))

    def _verdict(self, task: str, pairs: Iterable[TestedSolution]) -> dict[str, Any]:
        verdicts = [self._runner.verdict(*pair, self._timeouts[task]) for pair in pairs]
        if not verdicts:
            return {}
        worst = next((verdict for verdict in verdicts if verdict.status != "passed"), verdicts[0])
        return {"verdict": {"status": worst.status, "level": worst.level, "seconds": round(worst.seconds, 3)}}


def code_mark(task: Any) -> str:
    """What the fingerprint of a code task includes besides its files: how its tests are run."""
    return f"code_eval, adapted tests, {seconds(task):g} s"


def seconds(task: Any) -> float:
    """Wall time for one program of a task: longer for EvalPlus's, whose inputs are many and heavy."""
    return HEAVY_TIMEOUT if str(task.config.dataset_path).startswith("evalplus/") else TIMEOUT


def adapted(doc: Any, tests: str) -> tuple[str, list[str]]:
    """The tests of a document as they run, and a description of each difference from those that lm-eval runs: without
    them five reference solutions of MBPP and MBPP+, and every solution of HumanEval+'s task 32, fail."""
    changes = []
    if setup_code(doc):
        changes.append("test_imports and test_setup_code of a document run before its tests (lm-eval omits them)")
    if _BROKEN in tests:
        tests = tests.replace(_BROKEN, _FIXED)
        changes.append(f"a test that nothing can pass, {_BROKEN}, runs as {_FIXED} (HumanEval/32)")
    return with_setup(doc, tests), changes
