"""Limits for what lm-eval's filters and scorers do with each answer; which scorers compare formulas."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.quiet import replaced
from dare_bench.harness.common.scoring_process import ITEM_SECONDS
from dare_bench.harness.common.time_limits import ALGEBRA, ANSWER_SECONDS, Answers, AnswerTimeout, source_names, within
from dare_bench.sandbox.worker_process import ItemError, ItemTimeout, WorkerProcess

_FORMULAS = rf"{ALGEBRA}|is_equiv|math_equal|\w*boxed\w*"
"""Words in the files of scorers that read or compare formulas, as a regular expression."""


@contextlib.contextmanager
def limited(tasks: Mapping[str, Any], seconds: float = ITEM_SECONDS, *, part: int = 0) -> Iterator[LimitedScoring]:
    """Inside, the answers to ``tasks`` (lm-eval's, by name) are read and scored within limits: ``ANSWER_SECONDS`` for
    each in a filter and in an ordinary scorer, ``seconds`` in a worker process if formulas are compared. An answer that
    takes longer, or kills the worker, counts as wrong; see :class:`LimitedScoring`. ``part``: which of ``--repeats`` is
    scored, for the notes; raises DataError."""
    tasks = {name: task for name, task in tasks.items() if getattr(task, "OUTPUT_TYPE", None) == "generate_until"}
    with contextlib.ExitStack() as stack:
        scoring = LimitedScoring(tasks, seconds, part)
        stack.enter_context(scoring.worker)
        for name, task in tasks.items():
            if "process_results" not in vars(task):  # the class has it
                stack.callback(delattr, task, "process_results")
            stack.enter_context(replaced(task, process_results=functools.partial(scoring.score, name)))
            for ensemble in getattr(task, "_filters", ()):
                lose = functools.partial(scoring.unread, name, ensemble.name)
                filters = [functools.partial(_Filter, make, lose) for make in ensemble.filters]
                stack.enter_context(replaced(ensemble, filters=filters))
        yield scoring
    scoring.refuse_broken()


class _Filter:
    """One of lm-eval's filters, with a limit for each answer."""

    def __init__(self, make: Callable[[], Any], lose: Callable[[Any], None]) -> None:
        self._make, self._lose = make, lose

    def apply(self, resps: Iterable[Any], docs: Sequence[Any]) -> list[Any]:
        answers = Answers(resps, ANSWER_SECONDS)
        while True:
            try:
                return list(self._make().apply(answers, docs))
            except AnswerTimeout:
                self._lose(docs[answers.give_up()])


class LimitedScoring:
    """Scores within limits and records which answers got no score."""

    def __init__(self, tasks: Mapping[str, Any], seconds: float, part: int) -> None:
        self._tasks, self._part = tasks, part
        self._scorers = {name: task.process_results for name, task in tasks.items()}
        self._formulas = {name: self._scorers[name] for name, task in tasks.items() if is_mathematical(task)}
        self.worker = WorkerProcess(self._formulas, seconds)
        self._scored: Counter[str] = Counter()
        self._lost: dict[str, dict[tuple[str, str], str]] = defaultdict(dict)
        self._unread: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._errors: dict[str, list[str]] = defaultdict(list)

    def score(self, name: str, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """A task's ``process_results``. If formulas are compared, it never raises an exception of the scorer."""
        try:
            metrics = self._call(name, doc, list(results))
        except (ItemTimeout, ItemError) as error:
            self._lost[name][_doc_hash(doc), _key(results)] = "timeout" if isinstance(error, ItemTimeout) else "crashed"
            if isinstance(error, ItemError):
                self._errors[name].append(str(error))
            return self._wrong(name, doc, len(results))
        self._scored[name] += 1
        return dict(metrics)

    def unread(self, name: str, pipeline: str, doc: Any) -> None:
        """A filter of that pipeline did not end for an answer to ``doc``."""
        self._unread[name].add((_doc_hash(doc), pipeline))

    def _call(self, name: str, doc: Any, results: list[Any]) -> Any:
        if name in self._formulas:
            return self.worker.call(name, doc, results)
        try:
            with within(ANSWER_SECONDS):
                return self._scorers[name](doc, results)
        except AnswerTimeout as error:
            raise ItemTimeout(str(error)) from error

    def _limit(self, name: str) -> float:
        return self.worker.seconds if name in self._formulas else ANSWER_SECONDS

    def _wrong(self, name: str, doc: Any, count: int) -> dict[str, Any]:
        """The score of an empty answer: the scorer's metrics in their shapes."""
        try:
            return dict(self._call(name, doc, [""] * count))
        except (ItemTimeout, ItemError):
            return dict.fromkeys(self._tasks[name].aggregation(), 0.0)

    def mark(self, samples: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Write the verdict ``timeout`` or ``crashed`` into the affected rows (lm-eval's logged samples)."""
        for name in self._tasks.keys() & samples.keys():
            for row in samples[name]:
                # Every row gets its list: rows of several repeats are joined later, entry by entry.
                answers = row.setdefault("_answers", [{} for responses in row["resps"] for _ in responses])
                status = self._lost[name].get((row["doc_hash"], _key(row["filtered_resps"])))
                if (row["doc_hash"], row["filter"]) in self._unread[name]:
                    status = "timeout"
                if status is not None:
                    answers[0]["verdict"] = {"status": status, "level": "none", "seconds": self._limit(name)}

    @property
    def notes(self) -> list[str]:
        """A sentence for each task with answers that were counted as wrong without a comparison."""
        notes = []
        for name in self._tasks:
            counts = Counter(self._lost[name].values())
            where = f"task {name!r}" + (f", repeat {self._part}" if self._part else "")
            if count := len(self._unread[name]):
                limit = f"{ANSWER_SECONDS:g} s"
                notes.append(f"{where}: {_answers(count)} could not be read within {limit}; counted as wrong")
            if count := counts["timeout"]:
                limit = f"{self._limit(name):g} s"
                notes.append(f"{where}: {_answers(count)} could not be compared within {limit}; counted as wrong")
            if count := counts["crashed"]:
                first = self._errors[name][0]
                notes.append(f"{where}: the scorer failed on {_answers(count)}; counted as wrong ({first})")
        return notes

    def refuse_broken(self) -> None:
        """Raises DataError for a task whose scorer never worked: the answers are not wrong, the installation is."""
        for name, errors in self._errors.items():
            if not self._scored[name] and len(errors) > 1 and len(set(errors)) == 1:
                raise DataError(f"task {name!r}: its scorer fails on every answer: {errors[0]}")


def _answers(count: int) -> str:
    return f"{count} answer{'s' if count > 1 else ''}"


def _key(results: Sequence[Any]) -> str:
    return json.dumps(list(results), default=str)


def _doc_hash(doc: Any) -> str:
    """lm-eval's ``doc_hash`` of a logged sample."""
    from lm_eval.utils import handle_non_serializable, hash_string

    return str(hash_string(json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False)))


def scorer_of(task: Any) -> Callable[..., Any] | None:
    """The custom scoring function of an lm-eval task, if it has one."""
    function = getattr(task.config, "process_results", None)
    if not callable(function):
        function = getattr(type(task), "process_results", None)
        if not callable(function) or function.__module__.startswith("lm_eval.api."):
            return None
    while isinstance(function, functools.partial):
        function = function.func
    return function if hasattr(function, "__code__") else None


def is_mathematical(task: Any) -> bool:
    """Does the file of the task's scorer name what reads or compares formulas?"""
    scorer = scorer_of(task) if getattr(task, "OUTPUT_TYPE", None) == "generate_until" else None
    return scorer is not None and source_names(scorer, _FORMULAS)
