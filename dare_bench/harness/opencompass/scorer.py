"""Scores the answers of one repeat, with the contribution of each document."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.code_eval import CodeRunner
from dare_bench.harness.common.scoring_process import ITEM_SECONDS
from dare_bench.harness.opencompass.dataset import DataSet
from dare_bench.harness.opencompass.evaluation import DataSetEvaluator
from dare_bench.harness.opencompass.manifest_rows import ManifestRows
from dare_bench.harness.opencompass.programs import CodeSet, TestProgram, runs_code
from dare_bench.opencompass_numbers import as_share, detail_rows, has_mean, in_unit_of, mean, numbers, unclear, verdicts
from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess
from dare_bench.types import Likelihood

Answer = str | Sequence[Likelihood]
"""A text, or the log-likelihood of each label's text."""

_BUDGET = 120.0
"""Maximum seconds to score documents one by one; afterwards the score has no interval."""
Single = Callable[[int], Mapping[str, Any]]
"""The evaluator's result for the one document at this position."""


@dataclass
class RepeatScores:
    """One repeat's scores: ``totals`` and each document's ``values`` as fractions from 0 to 1, by metric; ``raw`` has
    OpenCompass's numbers; by document the value ``extracted`` from its answer and, if code ran or a comparison was
    cut short, the verdict."""

    totals: dict[str, float] = field(default_factory=dict)
    values: dict[str, dict[int, float]] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    extracted: dict[int, Any] = field(default_factory=dict)
    verdicts: dict[int, dict[str, Any]] = field(default_factory=dict)


class Scorer:
    """Scores a data set. ``bench``: local data sets, for the tests of HumanEval+ and MBPP+. ``read``: runs
    :meth:`read_program` in another process, because that runs OpenCompass's code on an answer."""

    def __init__(
        self, data: DataSet, runner: CodeRunner, bench: ManifestRows | None, read: Callable[[str], Any]
    ) -> None:
        self.data, self._runner, self._read_program = data, runner, read
        self.evaluation = DataSetEvaluator(data)
        self._code = CodeSet(data.cfg, bench) if runs_code(data.cfg) else None
        self._programs: dict[tuple[int, str], tuple[str, TestProgram]] = {}
        self._timeouts = 0
        self._errors: list[str] = []
        self._unclear: dict[str, str] = {}

    @property
    def runs_code(self) -> bool:
        """Are answers programs that are run?"""
        return self._code is not None

    def watch(self, document: int, text: str) -> None:
        """Start running the code of a finished answer."""
        if self._code is not None:
            self._runner.prepare(*self._program(document, text)[1])

    def refusal(self, document: int, text: str) -> str | None:
        """The reason why an answer's code could not be run; None if it was. Waits for it."""
        return None if self._code is None else self._runner.refusal(*self._program(document, text)[1])

    def score(self, answers: Mapping[int, Answer]) -> RepeatScores:
        """The scores of one answer to each document; raises DataError."""
        documents = list(answers)
        if not documents:
            return RepeatScores()
        if self._code is not None:
            return self._run(answers)
        predictions = [self._extract(answer) for answer in answers.values()]
        scored = RepeatScores(extracted=dict(zip(documents, predictions, strict=True)))
        if self.evaluation.compares_formulas:
            self._one_by_one(documents, predictions, scored)
        else:
            self._at_once(documents, predictions, scored)
        return scored

    def _extract(self, answer: Answer) -> Any:
        """The prediction: the postprocessed text, or the label whose text is the most likely."""
        if isinstance(answer, str):
            return self.evaluation.extract(answer)
        costs = perplexities(answer)
        label = self.data.prompter.labels[costs.index(min(costs))]
        return self.evaluation.extract(label) if isinstance(label, str) else label

    def _at_once(self, documents: list[int], predictions: list[Any], scored: RepeatScores) -> None:
        result = self.evaluation.evaluate(documents, predictions)

        def single(position: int) -> dict[str, Any]:
            return self.evaluation.evaluate([documents[position]], [predictions[position]])

        values = by_document(result, len(documents), single)
        scored.raw = {name: value for name, value in result.items() if name != "details"}
        self._set_scores(documents, numbers(result), values, scored)

    def _one_by_one(self, documents: list[int], predictions: list[Any], scored: RepeatScores) -> None:
        """Comparisons of formulas, each within its limit: the score is the mean over documents by definition."""
        rows: list[dict[str, float]] = []
        for document, prediction in zip(documents, predictions, strict=True):
            try:
                rows.append(self._worker.call("evaluate", document, prediction))
            except (ItemTimeout, ItemError) as error:
                if timed_out := isinstance(error, ItemTimeout):
                    self._timeouts += 1
                else:
                    self._errors.append(str(error))
                status = "timeout" if timed_out else "crashed"
                scored.verdicts[document] = {"status": status, "level": "none", "seconds": ITEM_SECONDS}
                rows.append({})
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names and len(self._errors) > 1 and len(set(self._errors)) == 1:
            raise DataError(f"data set {self.data.name!r}: its evaluator fails on every answer: {self._errors[0]}")
        values = {name: [row.get(name, 0.0) for row in rows] for name in names or ["accuracy"]}
        totals = {name: mean(of_metric) for name, of_metric in values.items()}
        scored.raw = dict(totals)
        self._set_scores(documents, totals, values, scored)

    @cached_property
    def _worker(self) -> WorkerProcess:
        import math_verify  # noqa: F401  (inherited by the worker and by the processes that OpenCompass forks there)

        _ = self.evaluation.references, self.data.questions

        def evaluate(document: int, prediction: Any) -> dict[str, float]:
            return numbers(self.evaluation.evaluate([document], [prediction]))

        return WorkerProcess({"evaluate": evaluate}, ITEM_SECONDS)

    def _set_scores(
        self, documents: list[int], totals: Mapping[str, float], values: Mapping[str, list[float]], scored: RepeatScores
    ) -> None:
        for name, total in totals.items():
            of_metric = values.get(name)
            share = as_share(name, total, of_metric)
            if unclear(total, of_metric):
                unit = "a share" if share == 1.0 else "a percentage"
                self._unclear[name] = f"{name} {total:g} comes without documents' values and was read as {unit}"
            scored.totals[name] = share * total
            if of_metric is not None:
                scored.values[name] = {d: share * value for d, value in zip(documents, of_metric, strict=True)}
                scored.totals[name] = mean(list(scored.values[name].values()))

    def _program(self, document: int, text: str) -> tuple[str, TestProgram]:
        """The code in an answer, and the program that is run."""
        key = (document, text)
        if key not in self._programs:
            assert self._code is not None
            code, lost = self._read_program(text)
            self.evaluation.lost += lost
            self._programs[key] = code, self._code.program(code, self.data.test[document])
        return self._programs[key]

    def read_program(self, text: str) -> tuple[str, list[tuple[str, str]]]:
        """The code that OpenCompass finds in an answer, and the answer with an error if its postprocessor failed."""
        assert self._code is not None
        self.evaluation.lost, lost = [], self.evaluation.lost
        try:
            return self._code.read(self.evaluation.extract(text)), self.evaluation.lost
        finally:
            self.evaluation.lost = lost

    def _run(self, answers: Mapping[int, Answer]) -> RepeatScores:
        assert self._code is not None
        scored, passed = RepeatScores(), {}
        for document, answer in answers.items():
            self.watch(document, str(answer))
        for document, answer in answers.items():
            scored.extracted[document], program = self._program(document, str(answer))
            verdict = self._runner.verdict(*program)
            passed[document] = float(verdict.status == "passed")
            scored.verdicts[document] = {name: getattr(verdict, name) for name in ("status", "level", "seconds")}
        counts = Counter(verdict["status"] for verdict in scored.verdicts.values())
        share = mean(list(passed.values()))
        scored.totals, scored.values = {self._code.metric: share}, {self._code.metric: passed}
        scored.raw = {self._code.metric: 100 * share, **counts}
        return scored

    def target(self, document: int) -> str:
        """The reference of a document, as its evaluator sees it."""
        return str(self.evaluation.references.get(document, ""))

    def proof(self, document: int) -> str:
        """Everything that decides a document's score: the reference, and the tests if code is run."""
        tests = self._code.tests(self.data.test[document]) if self._code is not None else ""
        return f"{self.target(document)}\x1f{tests}" if tests else self.target(document)

    @property
    def notes(self) -> list[str]:
        """Problems with single answers, and how these were counted."""
        where = f"task {self.data.name!r}"
        notes = [f"{where}: {text}; check it against opencompass in the results" for text in self._unclear.values()]
        if count := self._timeouts:
            notes.append(f"{where}: {count} answers not compared within {ITEM_SECONDS:g} s; counted as wrong")
        if self._errors:
            failed = f"the evaluator failed on {len(self._errors)} answers"
            notes.append(f"{where}: {failed}; counted as wrong ({self._errors[0]})")
        if lost := self.evaluation.lost:
            failed = f"its postprocessor or evaluator failed on {len(lost)} of the answers"
            notes.append(f"{where}: {failed}, read as empty ({lost[0][1]})")
        return notes


def perplexities(answers: Sequence[Likelihood]) -> list[float]:
    """OpenCompass's number for each label's text: the mean negative log-likelihood of a token, in nats."""
    return [-answer.value / max(1, answer.target_tokens) for answer in answers]


def by_document(result: Mapping[str, Any], count: int, single: Single | None) -> dict[str, list[float]]:
    """{metric: value of each document, in the unit of the total} for the metrics where that is known: a list of values
    is used only if its mean equals the total, so that an interval is never based on a guess.

    The first score's values are the evaluator's verdicts, if it has them; all others come from scoring the
    documents one by one.
    """
    totals = numbers(result)
    by_metric: dict[str, list[float]] = {}
    of_evaluator = verdicts(detail_rows(result), count)
    first = next(iter(totals), None)
    if of_evaluator is not None and first is not None:
        scaled = in_unit_of(totals[first], of_evaluator)
        if scaled is not None:
            by_metric[first] = scaled
    if single is None or all(name in by_metric for name in totals):
        return by_metric
    rows = _one_by_one(single, count)
    for name, total in totals.items():
        values = [row[name] for row in rows if name in row]
        if name not in by_metric and len(values) == count and has_mean(values, total):
            by_metric[name] = values
    return by_metric


def _one_by_one(single: Single, count: int) -> list[dict[str, float]]:
    """Results of single documents; incomplete, and so not used, if it takes too long or one cannot be scored."""
    rows: list[dict[str, float]] = []
    end = time.monotonic() + _BUDGET
    for position in range(count):
        try:
            rows.append(numbers(single(position)))
        except Exception:  # an evaluator that needs more than one document
            break
        if time.monotonic() > end:
            break
    return rows
