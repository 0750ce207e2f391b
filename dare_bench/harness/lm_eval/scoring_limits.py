"""Limits for what lm-eval's filters and scorers do with each answer."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dare_bench.errors import DataError
from dare_bench.harness.common.scoring_process import ITEM_SECONDS
from dare_bench.harness.common.time_limits import ANSWER_SECONDS, Answers, AnswerTimeout, within
from dare_bench.harness.common.worker_process import ItemError, ItemTimeout, WorkerProcess
from dare_bench.harness.lm_eval.scorers import is_mathematical


@contextlib.contextmanager
def limited(
    tasks: Mapping[str, Any], seconds: float = ITEM_SECONDS, *, answer_seconds: float = ANSWER_SECONDS, part: int = 0
) -> Iterator[LimitedScoring]:
    """Within it the answers to ``tasks`` (lm-eval's, by name) are read and scored within limits: ``answer_seconds`` for
    each in a filter and in an ordinary scorer, ``seconds`` in a worker process where formulas are compared. An answer
    that takes longer, or kills the worker, counts as wrong; see :class:`LimitedScoring`. ``part``: which of
    ``--repeats`` is scored, for the notes.

    Raises:
        DataError: a filter does not end for an empty answer; at the end, if a task's scorer failed with an error of its
            own for every single answer.
    """
    tasks = {name: task for name, task in tasks.items() if getattr(task, "OUTPUT_TYPE", None) == "generate_until"}
    originals = {name: task.process_results for name, task in tasks.items()}
    own = {name: vars(task).get("process_results") for name, task in tasks.items()}
    ensembles = [(name, ensemble) for name, task in tasks.items() for ensemble in getattr(task, "_filters", ())]
    filters = [ensemble.filters for _, ensemble in ensembles]
    formulas = {name: originals[name] for name, task in tasks.items() if is_mathematical(task)}
    with WorkerProcess(formulas, seconds) as guard:
        watched = LimitedScoring(tasks, originals, guard, formulas, answer_seconds, part)
        try:
            for name, task in tasks.items():
                task.process_results = functools.partial(watched.score, name)
            for name, ensemble in ensembles:
                lose = functools.partial(watched.unread, name, ensemble.name)
                ensemble.filters = [functools.partial(_Filter, make, answer_seconds, lose) for make in ensemble.filters]
            yield watched
        finally:
            for name, task in tasks.items():
                del task.process_results
                if own[name] is not None:  # else the class has it
                    task.process_results = own[name]
            for (_, ensemble), before in zip(ensembles, filters, strict=True):
                ensemble.filters = before
    watched.refuse_broken()


class _Filter:
    """One of lm-eval's filters, with a limit for each answer."""

    def __init__(self, make: Callable[[], Any], seconds: float, lose: Callable[[Any], None]) -> None:
        self._make, self._seconds, self._lose = make, seconds, lose

    def apply(self, resps: Iterable[Any], docs: Sequence[Any]) -> list[Any]:
        answers = Answers(resps, self._seconds)
        while True:
            try:
                return list(self._make().apply(answers, docs))
            except AnswerTimeout:
                self._lose(docs[answers.give_up()])


class LimitedScoring:
    """Scores within limits and remembers which answers had no verdict of their own."""

    def __init__(
        self,
        tasks: Mapping[str, Any],
        originals: Mapping[str, Callable[..., Any]],
        guard: WorkerProcess,
        formulas: Iterable[str],
        answer_seconds: float,
        part: int,
    ) -> None:
        self._tasks, self._originals, self._guard, self._part = tasks, originals, guard, part
        self._formulas, self._answer_seconds = set(formulas), answer_seconds
        self._scored: Counter[str] = Counter()
        self._lost: dict[str, dict[tuple[str, str], str]] = {}
        self._unread: dict[str, set[tuple[str, str]]] = {}
        self._errors: dict[str, list[str]] = {}

    def score(self, name: str, doc: Any, results: Sequence[Any]) -> dict[str, Any]:
        """A task's ``process_results``. Where formulas are compared, never an exception of the scorer."""
        try:
            metrics = self._call(name, doc, list(results))
        except ItemTimeout:
            self._lose(name, doc, results, "timeout")
        except ItemError as error:
            self._lose(name, doc, results, "crashed")
            self._errors.setdefault(name, []).append(str(error))
        else:
            self._scored[name] += 1
            return dict(metrics)
        return self._wrong(name, doc, len(results))

    def unread(self, name: str, pipeline: str, doc: Any) -> None:
        """A filter of that pipeline did not end for an answer to ``doc``."""
        self._unread.setdefault(name, set()).add((_doc_hash(doc), pipeline))

    def _call(self, name: str, doc: Any, results: list[Any]) -> Any:
        if name in self._formulas:
            return self._guard.call(name, doc, results)
        try:
            with within(self._answer_seconds):
                return self._originals[name](doc, results)
        except AnswerTimeout as error:
            raise ItemTimeout(str(error)) from error

    def _limit(self, name: str) -> float:
        return self._guard.seconds if name in self._formulas else self._answer_seconds

    def _lose(self, name: str, doc: Any, results: Sequence[Any], why: str) -> None:
        self._lost.setdefault(name, {})[_doc_hash(doc), _key(results)] = why

    def _wrong(self, name: str, doc: Any, count: int) -> dict[str, Any]:
        """What the scorer gives for an empty answer: its own metrics in their own shapes."""
        try:
            return dict(self._call(name, doc, [""] * count))
        except (ItemTimeout, ItemError):
            return dict.fromkeys(self._tasks[name].aggregation(), 0.0)

    def mark(self, samples: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Write the verdict ``timeout`` or ``crashed`` into the rows (lm-eval's logged samples) that it concerns."""
        for name in self._tasks.keys() & samples.keys():
            for row in samples[name]:
                # Every row gets its list: rows of several repeats are joined later, entry by entry.
                answers = row.setdefault("_answers", [{} for asked in row["resps"] for _ in asked])
                why = self._lost.get(name, {}).get((row["doc_hash"], _key(row["filtered_resps"])))
                if (row["doc_hash"], row["filter"]) in self._unread.get(name, ()):
                    why = "timeout"
                if why is not None:
                    answers[0]["verdict"] = {"status": why, "level": "none", "seconds": self._limit(name)}

    @property
    def notes(self) -> list[str]:
        """A sentence for each task with answers that were counted as wrong without a comparison."""
        said = []
        for name in self._tasks:
            kinds = Counter(self._lost.get(name, {}).values())
            where = f"task {name!r}" + (f", repeat {self._part}" if self._part else "")
            if count := len(self._unread.get(name, ())):
                limit = f"{self._answer_seconds:g} s"
                said.append(f"{where}: {_answers(count)} could not be read within {limit}; counted as wrong")
            if count := kinds["timeout"]:
                limit = f"{self._limit(name):g} s"
                said.append(f"{where}: {_answers(count)} could not be compared within {limit}; counted as wrong")
            if count := kinds["crashed"]:
                first = self._errors[name][0]
                said.append(f"{where}: the scorer failed on {_answers(count)}; counted as wrong ({first})")
        return said

    def refuse_broken(self) -> None:
        """Raises DataError for a task whose scorer never worked: that is no wrong answer, but a broken installation."""
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
